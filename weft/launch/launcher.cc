#include "weft/launch/launcher.h"

#include <filesystem>

#include "weft/base/error.h"
#include "weft/launch/internal/supervisor.h"

namespace weft::launch {
namespace {

// A fork copies only one thread. Locks held by other threads would stay locked in the copy.
void require_one_thread() {
  const auto threads = std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                                     std::filesystem::directory_iterator());
  WEFT_REQUIRE(threads == 1,
               "ranks are started by fork, so launch before any thread is started (there are " +
                   std::to_string(threads) + ")");
}

}  // namespace

int launch(const LaunchOptions& options) {
  require_one_thread();
  internal::command_line(options.program);  // throws if there is no program
  return internal::Supervisor(options, nullptr).run();
}

int launch_forked(const LaunchOptions& options, const std::function<int(int)>& run) {
  WEFT_REQUIRE(run != nullptr, "launch_forked needs a function to run");
  require_one_thread();
  return internal::Supervisor(options, run).run();
}

}  // namespace weft::launch

#include "weft/cli/internal/find_launcher.h"

#include <charconv>

#include "weft/cli/internal/run_name.h"

namespace weft::cli {

std::optional<pid_t> process_in(const std::string& text) {
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), pid);
  const bool whole = error == std::errc() && end == text.data() + text.size() && pid > 0;
  return whole ? std::optional(pid) : std::nullopt;
}

launch::LauncherId launcher_of(const std::string& job) {
  if (const auto pid = process_in(job)) return *pid;
  return launch::launcher_of_run(run_folder_of(job));
}

}  // namespace weft::cli

// `weft status`: where each rank of a live run is. It reads the page that the run's processes
// share, so it also works while ranks are stopped or hang.
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/json/json.h"
#include "weft/cli/commands.h"
#include "weft/cli/internal/find_launcher.h"
#include "weft/cli/internal/run_name.h"
#include "weft/launch/control.h"
#include "weft/observe/position/position.h"
#include "weft/observe/position/table.h"
#include "weft/observe/run/run_folder.h"

namespace weft::cli {
namespace {

pid_t process_of_run(const std::string& folder) {
  const auto owner = observe::owner_of_run(folder);
  if (owner.host.empty()) {
    throw Error(Errc::kInvalidArgument,
                folder + " is not a run that runs now: it has ended, or there is no such run");
  }
  char host[256] = "?";
  ::gethostname(host, sizeof host - 1);
  if (owner.host != host)
    throw Error(Errc::kInvalidArgument, folder + " is used by process " +
                                            std::to_string(owner.pid) + " on " + owner.host +
                                            "; run weft status there");
  return owner.pid;
}

// What the launcher says of its parameter servers, one a line; none if it has none, or is busy.
std::optional<std::string> servers_of(pid_t launcher) {
  if (launcher <= 0) return std::nullopt;
  try {
    std::string text =
        launch::ask_launcher(launcher, "servers", Deadline::in(std::chrono::seconds(1)));
    if (text.empty() || !text.starts_with("server ")) return std::nullopt;
    for (auto at = text.find("; "); at != std::string::npos; at = text.find("; ", at))
      text.replace(at, 2, "\n");
    return text;
  } catch (const Error&) {  // the job has just ended, or has no servers
    return std::nullopt;
  }
}

}  // namespace

int status(const StatusCommand& command) {
  const auto given = process_in(command.run);
  const pid_t pid = given ? *given : process_of_run(run_folder_of(command.run));
  const auto page = observe::RankPage::of_process(pid);
  if (!page) {
    throw Error(Errc::kInvalidArgument,
                "process " + std::to_string(pid) +
                    " is no launcher or rank of weft that runs now, or it belongs to another user");
  }
  auto views = observe::views_of(*page);
  for (observe::RankView& view : views) observe::read_thread(view);
  const std::int64_t now = observe::monotonic_ns();
  if (command.json) {
    std::cout << json_line(observe::json_of(views, now)) << std::endl;
    return 0;
  }
  std::cout << observe::table_of(views, now);
  if (const auto servers = servers_of(page->header().launcher)) std::cout << *servers << std::endl;
  const int others = page->header().elsewhere;
  if (others > 0)
    std::cout << others << (others == 1 ? " more rank is" : " more ranks are")
              << " on other nodes; run weft status there" << std::endl;
  return 0;
}

}  // namespace weft::cli

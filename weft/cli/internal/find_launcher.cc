#include "weft/cli/internal/find_launcher.h"

#include <filesystem>
#include <system_error>

#include "weft/base/text/numbers.h"
#include "weft/cli/internal/run_name.h"

namespace weft::cli {

std::optional<pid_t> process_in(const std::string& job) {
  std::error_code ignored;
  if (std::filesystem::is_directory(run_folder_of(job), ignored)) return std::nullopt;
  const auto pid = parse_number<pid_t>(job);
  return pid && *pid > 0 ? pid : std::nullopt;
}

launch::LauncherId launcher_of(const std::string& job) {
  if (const auto pid = process_in(job)) return *pid;
  return launch::launcher_of_run(run_folder_of(job));
}

}  // namespace weft::cli

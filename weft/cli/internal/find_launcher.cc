#include "weft/cli/internal/find_launcher.h"

#include <charconv>

#include "weft/cli/internal/run_name.h"
#include "weft/launch/control.h"

namespace weft::cli {

pid_t launcher_of(const std::string& job) {
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(job.data(), job.data() + job.size(), pid);
  if (error == std::errc() && end == job.data() + job.size() && pid > 0) return pid;
  return launch::launcher_of_run(run_folder_of(job));
}

}  // namespace weft::cli

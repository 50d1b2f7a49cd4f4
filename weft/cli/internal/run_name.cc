#include "weft/cli/internal/run_name.h"

#include <filesystem>

#include "weft/base/error.h"

namespace weft::cli {

std::string run_folder_of(const std::string& run) {
  namespace fs = std::filesystem;
  WEFT_REQUIRE(!run.empty(), "the name of a run is empty");
  const fs::path folder = fs::path(run + "/").parent_path(), named = "runs" / folder;
  std::error_code ignored;
  const bool is_named = fs::exists(named / "config.toml", ignored)
                            ? !fs::exists(folder / "config.toml", ignored)
                        : fs::exists(named, ignored) ? !fs::exists(folder, ignored)
                                                     : false;
  return (is_named ? named : folder).string();
}

}  // namespace weft::cli

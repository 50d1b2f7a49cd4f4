#include "weft/cli/internal/run_name.h"

#include <filesystem>

namespace weft::cli {

std::string run_folder_of(const std::string& run) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(run + "/").parent_path();
  return (!fs::exists(folder) && fs::exists("runs" / folder) ? "runs" / folder : folder).string();
}

}  // namespace weft::cli

#include "weft/train/internal/newest_run.h"

#include <algorithm>
#include <filesystem>

#include "weft/base/error.h"

namespace weft::train::internal {

std::string newest_run(const std::string& parent, const std::string& recipe) {
  std::string newest;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(parent, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.size() > recipe.size() && name.ends_with("-" + recipe)) newest = std::max(newest, name);
  }
  WEFT_REQUIRE(!newest.empty(), "there is no run of " + recipe + " to resume in " + parent + "; name one with --name");
  return newest;
}

}  // namespace weft::train::internal

#include "weft/launch/internal/sibling_program.h"

#include <filesystem>

#include "weft/base/error.h"

namespace weft::launch::internal {

std::string sibling_program(const std::string& asked, const std::string& name,
                            const std::string& target) {
  if (!asked.empty()) return asked;
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
  if (!std::filesystem::exists(program)) {
    throw Error(Errc::kUnavailable,
                "the program " + program.string() +
                    " is missing; build or install weft again, with the target " + target,
                {"launch", -1, -1});
  }
  return program.string();
}

}  // namespace weft::launch::internal

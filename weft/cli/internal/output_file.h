// Checks a file that a command will write at its end.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/file.h"

namespace weft::cli {

// Throws Error(kInvalidArgument), which names the option, if the folder of the file does not exist,
// if the file is a folder, and if it is one of the files that the command reads.
inline void check_output(const std::string& option, const std::string& file,
                         const std::vector<std::string>& inputs = {}) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const std::string folder = parent_of(file);
  WEFT_REQUIRE(fs::is_directory(folder, ignored),
               option + " " + file + ": there is no folder " + folder);
  WEFT_REQUIRE(!fs::is_directory(file, ignored), option + " " + file + " is a folder");
  for (const std::string& input : inputs) {
    WEFT_REQUIRE(!fs::equivalent(file, input, ignored),
                 option + " " + file + " is a file that the command reads; name another one");
  }
}

}  // namespace weft::cli

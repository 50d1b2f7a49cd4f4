// For tests: another job that begins to save the same step, on a file system without locks. Not
// installed.
#pragma once

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/testing/file_faults.h"

namespace weft::checkpoint {

// The moment of a save at which the other job begins: a call for a path.
struct Moment {
  FileCall call;
  std::string path;
};

// Before and after the files of a save that writes to the folder `aside`.
inline std::vector<Moment> moments_of_a_save(const std::string& aside) {
  return {{FileCall::kWrite, aside + "/state.json"}, {FileCall::kFlush, aside}};
}

// While it lives, once at the moment, if `has_begun` is false: the other job removes `aside` and
// begins `file` there.
class OtherJob {
 public:
  OtherJob(const Moment& moment, const std::string& aside, const std::string& file, bool& has_begun)
      : faults_([=, &has_begun](FileCall call, const std::string& path) {
          if (call == moment.call && path == moment.path && !std::exchange(has_begun, true)) {
            std::filesystem::remove_all(aside);
            std::filesystem::create_directory(aside);
            std::ofstream(aside + "/" + file) << "not complete";
          }
          return call == FileCall::kLock ? ENOLCK : 0;
        }) {}

 private:
  const FileFaults faults_;
};

}  // namespace weft::checkpoint

// For tests: files that cannot be changed as asked. Not installed.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "weft/base/file.h"

namespace weft {

// While it lives, every call that changes files asks `fault` (base/file.h). One at a time.
class FileFaults {
 public:
  using Fault = std::function<int(FileCall call, const std::string& path)>;

  explicit FileFaults(Fault fault) {
    current() = std::move(fault);
    set_file_fault([](const FileEvent& event) { return current()(event.call, event.path); });
  }
  ~FileFaults() { set_file_fault(nullptr); }
  FileFaults(const FileFaults&) = delete;
  FileFaults& operator=(const FileFaults&) = delete;

 private:
  static Fault& current() {
    static Fault fault;
    return fault;
  }
};

}  // namespace weft

// For tests: records the calls that change files. Not installed.
#pragma once

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/file.h"

namespace weft {

struct RecordedCall {
  FileCall call;
  std::string path, from, bytes;
};

// Records the file calls of all threads. One at a time; not together with FileFaults.
class FileRecorder {
 public:
  explicit FileRecorder(std::string root) : root_(std::move(root)) {
    current() = this;
    set_file_fault([](const FileEvent& event) {
      current()->add(event);
      return 0;
    });
  }
  ~FileRecorder() { set_file_fault(nullptr); }
  FileRecorder(const FileRecorder&) = delete;
  FileRecorder& operator=(const FileRecorder&) = delete;

  // The calls so far, with paths relative to the root.
  std::vector<RecordedCall> calls() const {
    const std::scoped_lock lock(mutex_);
    return calls_;
  }

 private:
  static FileRecorder*& current() {
    static FileRecorder* recorder = nullptr;
    return recorder;
  }
  bool is_below(const std::string& path) const { return path.starts_with(root_ + "/"); }
  std::string relative(const std::string& path) const {
    return is_below(path) ? path.substr(root_.size() + 1) : "";
  }
  void add(const FileEvent& event) {
    if (event.path != root_ && !is_below(event.path)) return;
    const std::scoped_lock lock(mutex_);
    calls_.push_back(
        {event.call, relative(event.path), relative(event.from), std::string(event.bytes)});
  }

  const std::string root_;
  mutable std::mutex mutex_;
  std::vector<RecordedCall> calls_;
};

}  // namespace weft

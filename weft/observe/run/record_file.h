// A file of records that a training run appends to, and that may lose some: a full disk must not
// end the run.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "weft/base/file.h"

namespace weft::observe {

class RecordFile {
 public:
  // Without a descriptor, all records are lost.
  RecordFile(UniqueFd file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}

  // Appends whole records. Those that cannot be written are lost, and no part of them stays. The
  // first time, an error is logged; after a write that works, the next failure is logged again.
  void append(std::string_view records);
  const std::string& path() const { return path_; }

 private:
  UniqueFd file_;
  std::string path_;
  bool loses_records_ = false;
};

}  // namespace weft::observe

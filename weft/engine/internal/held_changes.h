// Tells whether the program has written to the tensors that Sharded::held() gave it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "weft/checkpoint/slice.h"

namespace weft::engine::internal {

class HeldChanges {
 public:
  // Gives the CPU tensors storage and version counters of their own over the same memory. The
  // counters tell changes by these tensors from those by the module's parameters. Tensors of one
  // name have one counter.
  void lend(checkpoint::Slices& held);
  // True if a lent tensor has been written to since note(), or if that cannot be told.
  bool any() const { return unknown_ || count() != seen_; }
  void note() { seen_ = count(); }

 private:
  std::uint64_t count() const;

  std::map<std::string, c10::VariableVersion> versions_;
  std::uint64_t seen_ = 0;  // count() at note()
  bool unknown_ = false;    // some of these tensors count no changes
};

}  // namespace weft::engine::internal

// The memory for copies of a state. It is kept from one save to the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "weft/checkpoint/internal/save_job.h"

namespace weft::checkpoint::internal {

class Staging {
 public:
  Staging() = default;
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Allocates at least so many bytes and touches each page. Throws Error(kUnavailable) if there is
  // not enough memory.
  void reserve(std::int64_t bytes);
  // Copies the bytes of as many of the job's files as fit into `most` bytes, and sets their images.
  // Uses libtorch's threads.
  void copy(SaveJob& job, std::int64_t most);

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Returns the bytes of the files that copy() would copy.
std::int64_t staged_bytes(const SaveJob& job, std::int64_t most);

}  // namespace weft::checkpoint::internal

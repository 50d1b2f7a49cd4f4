// Memory for copies of a state, kept from one save to the next.
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

  // At least so many bytes, of pages that exist. Throws Error(kUnavailable) where there is no
  // memory for them.
  void reserve(std::int64_t bytes);
  // Copies the bytes of the job's files, as many files as fit into `most`, and sets their images.
  // By libtorch's threads.
  void copy(SaveJob& job, std::int64_t most);

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Bytes of the files of which copy() makes copies.
std::int64_t staged_bytes(const SaveJob& job, std::int64_t most);

}  // namespace weft::checkpoint::internal

// safetensors (https://github.com/huggingface/safetensors): 8 bytes of length, a JSON header, raw little-endian data. Nothing in it is
// executed, and every ecosystem reads it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace weft::checkpoint {

using TensorMap = std::map<std::string, at::Tensor>;
using StringMap = std::map<std::string, std::string>;

struct TensorFile {
  TensorMap tensors;   // on the CPU, contiguous, each with memory of its own
  StringMap metadata;  // the header's __metadata__
};

// Writes the file so that `path` is the old one or the complete new one at every instant: written aside in the same folder, flushed,
// renamed, the folder flushed; on failure nothing is left behind. Header padded to 8 bytes, offsets contiguous, wide dtypes first, so that
// every tensor is aligned. Tensors of any device, layout in memory and requires_grad; float64/32/16, bfloat16, int64/32/16/8, uint8, bool.
// Throws Error(kInvalidArgument) for another dtype, an undefined or sparse tensor, the name "__metadata__", names or values that are not
// UTF-8, or a path that can't be written; Error(kUnavailable) for a full or failing disk.
void save_safetensors(const std::string& path, const TensorFile& file);

// Reads a file that nobody vouches for. Every length is checked against the file's before anything is allocated; unknown dtypes, duplicate
// or unknown keys, holes, overlaps, bytes left over, text that is not UTF-8 and booleans other than 0 and 1 are refused. Opened once and
// read with pread, never mapped: a file that shrinks meanwhile is an error, not a signal. Throws Error(kCorrupt) naming the file and the
// place; errors of the system as base/file.h does.
TensorFile load_safetensors(const std::string& path);

// The same file, for who needs only some of its tensors or parts of them: the header is read and checked when it is opened, and of the data
// what is asked for. The file stays open. Any thread, several at once. Throws as load_safetensors() does.
class TensorReader {
 public:
  explicit TensorReader(const std::string& path);
  TensorReader(TensorReader&&) noexcept;
  ~TensorReader();

  const StringMap& metadata() const;
  // The tensors' names and sizes.
  const std::map<std::string, std::vector<std::int64_t>>& sizes() const;
  // Throws Error(kInvalidArgument) for a name that the file does not have.
  at::Tensor read(const std::string& name) const;
  // Entries [begin, begin + count) along `dim`, in one read for each index of the dimensions before it. Throws Error(kInvalidArgument) for
  // entries that are not there.
  at::Tensor read(const std::string& name, std::int64_t dim, std::int64_t begin, std::int64_t count) const;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace weft::checkpoint

// Reads and writes safetensors files (https://github.com/huggingface/safetensors): 8 bytes of
// length, a JSON header, raw little-endian data. Nothing in a file is executed, and every ecosystem
// reads it.
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
  // Tensors on the CPU, contiguous, each with its own memory.
  TensorMap tensors;
  StringMap metadata;  // __metadata__ of the header.
};

// Writes a file. At every instant `path` is the old file or the complete new one: the new one is
// written aside in the same folder, flushed and renamed, and the folder is flushed. On failure
// nothing is left behind. The header is padded to 8 bytes, offsets are contiguous, and wide dtypes
// come first, so every tensor is aligned.
// Accepts tensors of any device, memory layout and requires_grad, of float64/32/16, bfloat16,
// int64/32/16/8, uint8 and bool.
// Throws Error(kInvalidArgument) for another dtype or the name "__metadata__"; an undefined or
// sparse tensor; names or values that are not UTF-8, or too long for a header of 100 MB; a path
// that cannot be written. Throws Error(kUnavailable) for a full or failing disk.
void save_safetensors(const std::string& path, const TensorFile& file);

// Reads an untrusted file. Checks every length against the file's size before it allocates
// anything. Rejects unknown dtypes, duplicate or unknown keys, holes, overlaps, bytes left over,
// text that is not UTF-8 and booleans other than 0 and 1.
// Opens the file once and reads it with pread, without mapping it. So a file that shrinks meanwhile
// is an error, not a signal. Throws Error(kCorrupt), naming the file and the place. Throws system
// errors as base/file.h does.
TensorFile load_safetensors(const std::string& path);

// Reads some tensors of a safetensors file, or parts of them. Opening reads and checks the header;
// each read takes only the data that it needs. The file stays open. Any thread may call it, several
// at once. Throws as load_safetensors() does.
class TensorReader {
 public:
  explicit TensorReader(const std::string& path);
  TensorReader(TensorReader&&) noexcept;
  ~TensorReader();

  const StringMap& metadata() const;
  // Names and sizes of the tensors.
  const std::map<std::string, std::vector<std::int64_t>>& sizes() const;
  // Reads a whole tensor. Throws Error(kInvalidArgument) for a name that the file does not have.
  at::Tensor read(const std::string& name) const;
  // Reads entries [begin, begin + count) along `dim`, in one read for each index of the dimensions
  // before it. Throws Error(kInvalidArgument) for entries that are not there.
  at::Tensor read(const std::string& name, std::int64_t dim, std::int64_t begin,
                  std::int64_t count) const;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace weft::checkpoint

// Reads any rectangle of any tensor of a checkpoint, whatever ranks wrote it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/checkpoint/safetensors.h"
#include "weft/checkpoint/slice.h"

namespace weft::checkpoint {

// Opens what it reads, and reads with pread the bytes that are asked for, in whole chunks of the
// checksums. Trusts nothing in the files. Any thread, several at once. All calls throw
// Error(kCorrupt) naming the file for one that is damaged.
class Reader : public SliceSource {
 public:
  // A checkpoint's folder, sharded or of an older weft, whose checksums are verified as it is read.
  explicit Reader(const std::string& folder);
  // Safetensors files, as the one part "model": Hugging Face's sharded ones, say. Throws
  // Error(kInvalidArgument) for a name in two files.
  static Reader of_files(const std::vector<std::string>& paths);
  Reader(Reader&&) noexcept;
  Reader& operator=(Reader&&) noexcept;
  ~Reader() override;

  std::int64_t step() const;  // 0 for files
  const StringMap& state() const;
  std::vector<std::string> parts() const;

  using Shapes = std::map<std::string, std::vector<std::int64_t>>;
  // The tensors of a part. Throws Error(kInvalidArgument) for a part that is not there.
  const Shapes& shapes(const std::string& part) const;
  at::ScalarType dtype(const std::string& part, const std::string& name) const;

  // By the tensors' names, whatever part they are in; that of the first part where several have one
  // of this name.
  bool has(const std::string& name) const override;
  void check(const Slices& slices) const override;
  void fill(const Slices& slices) const override;
  // Of one part.
  void fill(const std::string& part, const Slices& slices) const;
  // A whole tensor.
  at::Tensor read(const std::string& part, const std::string& name) const;

  // Where the tensor is: of each of its slices the file's name and the rectangle.
  struct Place {
    std::string file;
    std::vector<std::int64_t> offset, sizes;
  };
  std::vector<Place> places(const std::string& part, const std::string& name) const;

 private:
  struct State;
  explicit Reader(std::unique_ptr<const State> state);
  std::unique_ptr<const State> state_;
};

}  // namespace weft::checkpoint

// Reader: reads any rectangle of any tensor of a checkpoint, written by any number of ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/checkpoint/safetensors.h"
#include "weft/checkpoint/slice.h"

namespace weft::checkpoint {

// Opens the files that it needs. It reads the requested bytes with pread, in whole chunks of the
// checksums. It trusts nothing in the files. Any thread may call it, several at once. All calls
// throw Error(kCorrupt), naming the file, for a damaged one.
class Reader : public SliceSource {
 public:
  // Opens a checkpoint's folder, sharded or of an older weft. Verifies its checksums as it reads.
  explicit Reader(const std::string& folder);
  // Opens safetensors files as one part "model", such as Hugging Face's sharded files. Throws
  // Error(kInvalidArgument) for a name in two files.
  static Reader of_files(const std::vector<std::string>& paths);

  // Bytes of a block.
  struct Range {
    std::int64_t begin = 0, bytes = 0;
  };
  // Reads ranges of a block that is elsewhere, one after the other, into the memory at `out`. At
  // most kFetchBytes and kFetchRanges at once.
  using Fetch = std::function<void(const std::vector<Range>& ranges, std::byte* out)>;
  static constexpr std::int64_t kFetchBytes = std::int64_t{4} << 20;
  static constexpr std::size_t kFetchRanges = 4096;
  // A packed state of one rank (packed.h).
  struct Packed {
    at::Tensor block;        // The block. With `fetch`: its header alone, packed_header().
    std::int64_t bytes = 0;  // With `fetch`: size of the whole block.
    Fetch fetch = nullptr;
  };
  // Opens packed states, the blocks of all ranks in any order. Keeps the blocks and reads them in
  // place, or fetches the wanted bytes. Throws Error(kCorrupt) for a damaged header, and if the
  // blocks are of different steps or do not make up the whole.
  static Reader of_packed(const std::vector<Packed>& blocks);
  Reader(Reader&&) noexcept;
  Reader& operator=(Reader&&) noexcept;
  ~Reader() override;

  std::int64_t step() const;  // Step of a checkpoint; 0 for files.
  const StringMap& state() const;
  std::vector<std::string> parts() const;

  using Shapes = std::map<std::string, std::vector<std::int64_t>>;
  // Shapes of a part's tensors. Throws Error(kInvalidArgument) for a part that is not there.
  const Shapes& shapes(const std::string& part) const;
  at::ScalarType dtype(const std::string& part, const std::string& name) const;
  // True if stored values of one type can be loaded into a tensor of another type. Floats, int32
  // and int64 can be loaded into all floats. int8 cannot: it is quantized, and its scale is
  // elsewhere.
  static bool converts(at::ScalarType stored, at::ScalarType wanted);

  // These three find tensors by name in any part; the first part wins if several have the name.
  bool has(const std::string& name) const override;
  void check(const Slices& slices) const override;
  void fill(const Slices& slices) const override;
  // Fills slices from one part.
  void fill(const std::string& part, const Slices& slices) const;
  // Reads a whole tensor.
  at::Tensor read(const std::string& part, const std::string& name) const;

  // File and rectangle of each stored slice of a tensor.
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

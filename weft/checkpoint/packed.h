// A rank's part of a checkpoint as one block of memory: for copies of a state that never go to
// disk.
//
//   at::Tensor block = at::empty({layout.bytes()}, at::kByte);
//   layout.copy_to(block);                                  // on each rank
//   Reader state = Reader::of_packed({{block0}, {block1}, …});  // anywhere, from all ranks' blocks
//
// A block is the image of a safetensors file. Entries are named "<part>/<slice>", with the slice's
// name as in a checkpoint's index. The metadata holds the step, the strings of Shards::state and
// the shapes of whole tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "weft/checkpoint/sharded.h"

namespace weft::checkpoint {

// Layout of the block for these shards. The slices stay views of the model's memory, so a layout is
// valid as long as the shards are. Throws Error(kInvalidArgument) for a name that no tensor of a
// checkpoint can have or that is given twice, and for a dtype that a checkpoint cannot hold.
class PackedLayout {
 public:
  explicit PackedLayout(const Shards& shards);

  std::int64_t bytes() const { return bytes_; }  // Size of the block.
  // Copies the header and all values into `block`, uint8 [at least bytes()], contiguous. Uses
  // libtorch's threads.
  void copy_to(const at::Tensor& block) const;

 private:
  std::string header_;
  Slices slices_;  // in the order of the entries
  std::int64_t bytes_ = 0;
};

// The header of a block, as a view: all that a Reader needs to find values in a block that is
// elsewhere. Throws Error(kCorrupt) if the block has none.
at::Tensor packed_header(const at::Tensor& block);

}  // namespace weft::checkpoint

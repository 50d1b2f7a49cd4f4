#include "weft/checkpoint/packed.h"

#include <ATen/ATen.h>

#include <map>

#include "weft/base/error.h"
#include "weft/checkpoint/internal/dtypes.h"
#include "weft/checkpoint/internal/header.h"
#include "weft/checkpoint/internal/image.h"
#include "weft/checkpoint/internal/index.h"
#include "weft/checkpoint/internal/packed_block.h"

namespace weft::checkpoint {

PackedLayout::PackedLayout(const Shards& shards) {
  internal::Header header;
  header.metadata[internal::kPackedStep] = std::to_string(shards.step);
  for (const auto& [key, value] : shards.state)
    header.metadata[internal::kPackedState + key] = value;
  std::map<std::string, const Slice*> by_name;
  for (const auto& [part, slices] : shards.parts) {
    for (const Slice& slice : slices) {
      check_name(slice.name);
      const std::string name = part + "/" + slice.name;
      const auto sizes = slice.tensor.sizes().vec();
      const std::string key =
          slice.is_whole() ? name : internal::render_slice_name({name, slice.offset, sizes});
      header.metadata[internal::kPackedShape + name] = internal::shape_text(slice.shape);
      header.entries.push_back({key, internal::dtype_of(slice.name, slice.tensor), sizes});
      WEFT_REQUIRE(by_name.emplace(key, &slice).second,
                   "checkpoint: \"" + key + "\" is given twice");
    }
  }
  const std::int64_t data_bytes = internal::lay_out(header.entries);
  for (const internal::Entry& entry : header.entries) slices_.push_back(*by_name.at(entry.name));
  header_ = internal::render_header(header);
  bytes_ = static_cast<std::int64_t>(header_.size()) + data_bytes;
}

void PackedLayout::copy_to(const at::Tensor& block) const {
  WEFT_REQUIRE(block.scalar_type() == at::kByte && block.is_contiguous() && block.numel() >= bytes_,
               "a packed state needs " + std::to_string(bytes_) + " contiguous bytes");
  internal::ImageWriter writer;
  writer.add(static_cast<std::byte*>(block.data_ptr()), header_, slices_);
  writer.write();
}

at::Tensor packed_header(const at::Tensor& block) {
  const std::int64_t bytes = internal::header_bytes(block, block.numel());
  if (bytes == 0) throw Error(Errc::kCorrupt, "a packed state has no header");
  return block.narrow(0, 0, bytes);
}

}  // namespace weft::checkpoint

#include "weft/checkpoint/internal/packed_block.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/text/words.h"
#include "weft/checkpoint/internal/dtypes.h"
#include "weft/checkpoint/internal/header.h"
#include "weft/checkpoint/internal/index.h"

namespace weft::checkpoint::internal {
namespace {

// Numbers separated by commas.
std::vector<std::int64_t> numbers_in(const std::string& text, const std::string& where) {
  std::vector<std::int64_t> numbers;
  const char *at = text.data(), *const end = at + text.size();
  while (at < end) {
    std::int64_t number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc() || number < 0 || (next < end && *next != ','))
      throw Error(Errc::kCorrupt, where + ": \"" + text + "\" is no shape");
    numbers.push_back(number);
    at = next < end ? next + 1 : end;
  }
  return numbers;
}

std::string metadata_of(const Header& header, const std::string& key, const std::string& where) {
  const auto found = header.metadata.find(key);
  if (found == header.metadata.end()) throw Error(Errc::kCorrupt, where + ": lacks " + key);
  return found->second;
}

// A slice without its values.
PackedSlice slice_of(const Header& header, const Entry& entry, const std::string& where) {
  SliceName name = parse_slice_name(entry.name, where);
  if (name.offset.empty()) name.offset.assign(entry.shape.size(), 0);
  const auto slash = name.tensor.find('/');
  if (slash == std::string::npos)
    throw Error(Errc::kCorrupt, where + ": \"" + entry.name + "\" has no part");
  PackedSlice slice{
      .part = name.tensor.substr(0, slash),
      .name = name.tensor.substr(slash + 1),
      .shape = numbers_in(metadata_of(header, kPackedShape + name.tensor, where), where),
      .offset = name.offset,
      .sizes = entry.shape,
      .dtype = entry.dtype};
  bool fits = slice.shape.size() == slice.offset.size();
  for (std::size_t d = 0; fits && d < slice.shape.size(); ++d)
    fits = slice.offset[d] >= 0 && slice.sizes[d] <= slice.shape[d] - slice.offset[d];
  if (!fits) throw Error(Errc::kCorrupt, where + ": \"" + entry.name + "\" leaves its tensor");
  return slice;
}

}  // namespace

std::string shape_text(const std::vector<std::int64_t>& shape) { return joined(shape, ","); }

std::int64_t header_bytes(const at::Tensor& block, std::int64_t bytes) {
  std::uint64_t length = 0;
  if (block.numel() >= kLengthBytes) std::memcpy(&length, block.const_data_ptr(), kLengthBytes);
  const auto most = std::min(block.numel(), bytes) - kLengthBytes;
  if (length == 0 || length > static_cast<std::uint64_t>(kMaxHeaderBytes) ||
      static_cast<std::int64_t>(length) > most)
    return 0;
  return static_cast<std::int64_t>(length) + kLengthBytes;
}

PackedBlock::PackedBlock(const Reader::Packed& packed, const std::string& where) {
  const at::Tensor& block = packed.block;
  const std::int64_t bytes = packed.fetch ? packed.bytes : block.numel();
  const std::int64_t data = header_bytes(block, bytes);
  if (data == 0) throw Error(Errc::kCorrupt, where + ": a block has no header");
  const auto* const text = static_cast<const char*>(block.const_data_ptr()) + kLengthBytes;
  const Header header =
      parse_header({text, static_cast<std::size_t>(data - kLengthBytes)}, bytes - data, where);
  const auto step = numbers_in(metadata_of(header, kPackedStep, where), where);
  if (step.size() != 1) throw Error(Errc::kCorrupt, where + ": lacks the number of its step");
  step_ = step[0];
  const std::string_view prefix = kPackedState;
  for (const auto& [key, value] : header.metadata) {
    if (key.starts_with(prefix)) state_.emplace(key.substr(prefix.size()), value);
  }
  for (const Entry& entry : header.entries) {
    PackedSlice slice = slice_of(header, entry, where);
    slice.begin = data + entry.begin;
    slice.fetch = packed.fetch;
    if (!packed.fetch) {
      slice.values = block.narrow(0, slice.begin, entry.end - entry.begin)
                         .view(torch_type_of(entry.dtype))
                         .view(entry.shape);
    }
    slices_.push_back(std::move(slice));
  }
}

}  // namespace weft::checkpoint::internal

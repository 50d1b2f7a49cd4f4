#include "weft/checkpoint/internal/packed_block.h"

#include <ATen/ATen.h>

#include <charconv>
#include <cstring>
#include <string_view>

#include "weft/base/error.h"
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

}  // namespace

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t size : shape) text += (text.empty() ? "" : ",") + std::to_string(size);
  return text;
}

PackedBlock::PackedBlock(const at::Tensor& block, const std::string& where) {
  const auto* const bytes = static_cast<const std::byte*>(block.const_data_ptr());
  std::uint64_t length = 0;
  const auto size = static_cast<std::uint64_t>(block.numel());
  if (size >= kLengthBytes) std::memcpy(&length, bytes, kLengthBytes);
  if (length == 0 || length > static_cast<std::uint64_t>(kMaxHeaderBytes) ||
      length > size - kLengthBytes)
    throw Error(Errc::kCorrupt, where + ": a block has no header");
  const auto data = static_cast<std::int64_t>(length) + kLengthBytes;
  const Header header =
      parse_header(std::string_view(reinterpret_cast<const char*>(bytes) + kLengthBytes, length),
                   block.numel() - data, where);
  const auto step = numbers_in(metadata_of(header, kPackedStep, where), where);
  if (step.size() != 1) throw Error(Errc::kCorrupt, where + ": lacks the number of its step");
  step_ = step[0];
  const std::string_view prefix = kPackedState;
  for (const auto& [key, value] : header.metadata) {
    if (key.starts_with(prefix)) state_.emplace(key.substr(prefix.size()), value);
  }
  for (const Entry& entry : header.entries) {
    SliceName slice = parse_slice_name(entry.name, where);
    if (slice.offset.empty()) slice.offset.assign(entry.shape.size(), 0);
    const auto slash = slice.tensor.find('/');
    if (slash == std::string::npos)
      throw Error(Errc::kCorrupt, where + ": \"" + entry.name + "\" has no part");
    PackedSlice one{slice.tensor.substr(0, slash), slice.tensor.substr(slash + 1),
                    numbers_in(metadata_of(header, kPackedShape + slice.tensor, where), where),
                    slice.offset,
                    block.narrow(0, data + entry.begin, entry.end - entry.begin)
                        .view(torch_type_of(entry.dtype))
                        .view(entry.shape)};
    const bool fits = one.shape.size() == one.offset.size() && [&] {
      for (std::size_t d = 0; d < one.shape.size(); ++d) {
        if (one.offset[d] < 0 || entry.shape[d] > one.shape[d] - one.offset[d]) return false;
      }
      return true;
    }();
    if (!fits) throw Error(Errc::kCorrupt, where + ": \"" + entry.name + "\" leaves its tensor");
    slices_.push_back(std::move(one));
  }
}

}  // namespace weft::checkpoint::internal

#include "weft/checkpoint/slice.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "weft/base/error.h"
#include "weft/checkpoint/internal/dtypes.h"

namespace weft::checkpoint {
namespace {

using Sizes = std::vector<std::int64_t>;

// Cuts a range of a rectangle's entries into rectangles that are each one run in memory.
class Cutter {
 public:
  Cutter(const Rectangle& rectangle, const at::Tensor& flat, Slices& into)
      : rectangle_(rectangle), flat_(flat), into_(into) {}

  // Adds the entries [begin, end) of the part of the rectangle whose dimensions before `dim` are
  // fixed to one index, given by `offset` and `sizes`.
  void cut(std::size_t dim, Sizes offset, Sizes sizes, std::int64_t begin, std::int64_t end) {
    if (begin >= end) return;
    if (dim == rectangle_.sizes.size()) return add(offset, sizes);
    std::int64_t inner = 1;
    for (std::size_t d = dim + 1; d < rectangle_.sizes.size(); ++d) inner *= rectangle_.sizes[d];
    std::int64_t row = begin / inner;
    if (begin % inner != 0) {
      const std::int64_t stop = std::min(end, (row + 1) * inner);
      cut_row(dim, offset, sizes, row, {begin - row * inner, stop - row * inner});
      ++row;
      begin = stop;
    }
    const std::int64_t rows = (end - begin) / inner;
    if (rows > 0) {
      Sizes all_offset = offset, all_sizes = sizes;
      all_offset.push_back(row);
      all_sizes.push_back(rows);
      for (std::size_t d = dim + 1; d < rectangle_.sizes.size(); ++d) {
        all_offset.push_back(0);
        all_sizes.push_back(rectangle_.sizes[d]);
      }
      add(all_offset, all_sizes);
    }
    cut_row(dim, offset, sizes, row + rows, {0, end - begin - rows * inner});
  }

 private:
  void cut_row(std::size_t dim, Sizes offset, Sizes sizes, std::int64_t row,
               std::pair<std::int64_t, std::int64_t> range) {
    offset.push_back(row);
    sizes.push_back(1);
    cut(dim + 1, std::move(offset), std::move(sizes), range.first, range.second);
  }

  void add(const Sizes& offset, const Sizes& sizes) {
    std::int64_t count = 1;
    for (const std::int64_t size : sizes) count *= size;
    Slice slice{rectangle_.name, rectangle_.shape, rectangle_.offset,
                flat_.narrow(0, taken_, count).view(sizes)};
    taken_ += count;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      slice.offset[d] += offset[d];
      const std::int64_t there = std::min(sizes[d], slice.shape[d] - slice.offset[d]);
      if (there <= 0) return;
      slice.tensor = slice.tensor.narrow(static_cast<std::int64_t>(d), 0, there);
    }
    into_.push_back(std::move(slice));
  }

  const Rectangle& rectangle_;
  const at::Tensor& flat_;
  Slices& into_;
  std::int64_t taken_ = 0;  // entries of `flat_`
};

}  // namespace

void check_name(const std::string& name) {
  WEFT_REQUIRE(!name.empty() && name != "__metadata__" && name.back() != ']',
               "checkpoint: no tensor can be called \"" + name + "\"");
}

Slice whole_slice(std::string name, at::Tensor tensor) {
  Sizes shape = tensor.sizes().vec(), offset(shape.size(), 0);
  return {std::move(name), std::move(shape), std::move(offset), std::move(tensor)};
}

bool has_values(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return true;
  if (tensor.storage().nbytes() == 0) return false;  // not gathered
  try {
    return tensor.const_data_ptr() != nullptr;
  } catch (const c10::Error&) {  // a tensor without storage of its own, such as a fake one
    return false;
  }
}

at::Tensor plain_view(const std::string& name, const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  const auto is_known = [&](const auto& known) { return known.first == type; };
  if (std::any_of(std::begin(internal::kDTypes), std::end(internal::kDTypes), is_known))
    return tensor;
  if (tensor.is_complex()) return at::view_as_real(tensor);
  const bool plain = !c10::isQIntType(type) && !c10::isBitsType(type);
  switch (plain ? c10::elementSize(type) : 0) {
    case 1: return tensor.view(at::kByte);
    case 2: return tensor.view(at::kShort);
    case 4: return tensor.view(at::kInt);
    case 8: return tensor.view(at::kLong);
    default:
      throw Error(Errc::kInvalidArgument, "'" + name + "' has type " + c10::toString(type) +
                                              ", which neither checkpoints nor collectives "
                                              "support; convert it");
  }
}

std::string key_of(const Slice& slice) {
  std::string key = slice.name;
  for (std::size_t d = 0; d < slice.offset.size(); ++d)
    key += " " + std::to_string(slice.offset[d]) + "+" +
           std::to_string(slice.tensor.size(static_cast<std::int64_t>(d)));
  return key;
}

std::string outline(const Slices& slices) {
  std::string text;
  for (const Slice& slice : slices) {
    text += slice.name + " " + c10::toString(slice.tensor.scalar_type()) + "[";
    for (std::size_t d = 0; d < slice.shape.size(); ++d)
      text += (d > 0 ? ", " : "") + std::to_string(slice.shape[d]);
    text += "]; ";
  }
  return text;
}

Slices slices_of_range(const Rectangle& rectangle, std::int64_t begin, const at::Tensor& flat) {
  std::int64_t all = 1;
  for (const std::int64_t size : rectangle.sizes) all *= size;
  WEFT_REQUIRE(flat.dim() == 1 && begin >= 0 && flat.numel() <= all - begin &&
                   rectangle.offset.size() == rectangle.sizes.size() &&
                   rectangle.shape.size() == rectangle.sizes.size(),
               "slices_of_range: \"" + rectangle.name + "\" has no such entries");
  Slices slices;
  Cutter(rectangle, flat, slices).cut(0, {}, {}, begin, begin + flat.numel());
  return slices;
}

Slices deal(Slices same, int copy, int copies) {
  WEFT_REQUIRE(copies > 0 && copy >= 0 && copy < copies,
               "deal: there is no copy " + std::to_string(copy) + " of " + std::to_string(copies));
  std::sort(same.begin(), same.end(), [](const Slice& a, const Slice& b) {
    if (a.tensor.nbytes() != b.tensor.nbytes()) return a.tensor.nbytes() > b.tensor.nbytes();
    return std::tie(a.name, a.offset) < std::tie(b.name, b.offset);
  });
  std::vector<std::size_t> bytes(static_cast<std::size_t>(copies), 0);
  Slices mine;
  for (Slice& slice : same) {
    const auto least = std::min_element(bytes.begin(), bytes.end());
    *least += slice.tensor.nbytes() + 1;
    if (least - bytes.begin() == copy) mine.push_back(std::move(slice));
  }
  return mine;
}

}  // namespace weft::checkpoint

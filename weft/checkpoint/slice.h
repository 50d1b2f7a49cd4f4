// A rank's part of tensors that are divided over ranks: rectangles, as they lie in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace weft::checkpoint {

// Entries [offset[d], offset[d] + tensor.size(d)) along each dimension d of a tensor. A tensor may
// be a view of the model's memory: saving reads it, loading writes it.
struct Slice {
  std::string name;                  // of the whole tensor
  std::vector<std::int64_t> shape;   // of the whole tensor
  std::vector<std::int64_t> offset;  // as many as `shape`
  at::Tensor tensor;                 // of the rectangle's sizes

  bool is_whole() const { return tensor.sizes() == at::IntArrayRef(shape); }
};
using Slices = std::vector<Slice>;
using Parts = std::map<std::string, Slices>;  // "model", "optimizer", …

Slice whole_slice(std::string name, at::Tensor tensor);

// A rectangle, [offset, offset + sizes) of a tensor of this shape.
struct Rectangle {
  std::string name;
  std::vector<std::int64_t> shape, offset, sizes;
};
// `flat` [n] has the rectangle's entries [begin, begin + n) in row-major order. Gives them as
// slices that are views of `flat`: at most two for each dimension. Entries beyond `shape` are
// padding, and left out. Throws Error(kInvalidArgument) for what is not in the rectangle.
Slices slices_of_range(const Rectangle& rectangle, std::int64_t begin, const at::Tensor& flat);

// Where slices get their values from: a checkpoint's Reader, or weights that lie otherwise.
class SliceSource {
 public:
  virtual ~SliceSource() = default;
  virtual bool has(const std::string& name) const = 0;
  // Throws Error(kInvalidArgument) naming the first slice whose tensor is missing or has another
  // shape.
  virtual void check(const Slices& slices) const = 0;
  // Gives each slice's tensor its values, converted to its dtype. check() first: nothing has
  // changed if that throws.
  virtual void fill(const Slices& slices) const = 0;
};

// Ranks that have the same slices deal them out, so that each writes some: this one's, of rank
// `copy` of `copies`. The largest go first, each to the rank with the fewest bytes. Every one of
// these ranks gives the same list, in any order.
Slices deal(Slices same, int copy, int copies);

}  // namespace weft::checkpoint

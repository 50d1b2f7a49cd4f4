// Slice: a rank's rectangular part of a tensor that is divided over ranks, as it lies in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace weft::checkpoint {

// Holds the entries [offset[d], offset[d] + tensor.size(d)) along each dimension d of a whole
// tensor. `tensor` may be a view of the model's memory: saving reads it, loading writes it.
struct Slice {
  std::string name;                  // Name of the whole tensor.
  std::vector<std::int64_t> shape;   // Shape of the whole tensor.
  std::vector<std::int64_t> offset;  // Begin of the slice in each dimension.
  at::Tensor tensor;                 // Values, with the sizes of the slice.

  bool is_whole() const { return tensor.sizes() == at::IntArrayRef(shape); }
};
using Slices = std::vector<Slice>;
using Parts = std::map<std::string, Slices>;  // "model", "optimizer", …

// Throws Error(kInvalidArgument) for a name that no tensor of a checkpoint can have: an empty one,
// "__metadata__", or one that ends with ']', as the names of slices do.
void check_name(const std::string& name);

// Makes the slice of a tensor that is not divided.
Slice whole_slice(std::string name, at::Tensor tensor);

// False if an access to the tensor's values fails, since a plan has taken its memory: another rank
// has the values, or they are there only while a block runs.
bool has_values(const at::Tensor& tensor);

// A view of a dense tensor's memory in a type that files have: complex numbers as pairs of reals in
// one more dimension, other types that safetensors lacks as integers of their size. Throws
// Error(kInvalidArgument), with the name, for a type that has no such view.
at::Tensor plain_view(const std::string& name, const at::Tensor& tensor);

// Name and place of a slice in one line, without a tab: "fc1.weight 0+64 0+784". Slices with the
// same key have the same entries of the same tensor.
std::string key_of(const Slice& slice);

// Names, types and shapes of the whole tensors, for comparison: "fc1.weight Float[128, 784]; …".
std::string outline(const Slices& slices);

// The rectangle [offset, offset + sizes) of a tensor of this shape.
struct Rectangle {
  std::string name;
  std::vector<std::int64_t> shape, offset, sizes;
};
// Returns slices for a range of a rectangle's entries. `flat` [n] has the entries [begin, begin +
// n) in row-major order. The slices are views of `flat`, at most two for each dimension. Entries
// beyond `shape` are padding and left out. Throws Error(kInvalidArgument) for entries that are not
// in the rectangle.
Slices slices_of_range(const Rectangle& rectangle, std::int64_t begin, const at::Tensor& flat);

// Source of the values of slices: a checkpoint's Reader, or weights in another form.
class SliceSource {
 public:
  virtual ~SliceSource() = default;
  virtual bool has(const std::string& name) const = 0;
  // Throws Error(kInvalidArgument) naming the first slice whose tensor is missing or has another
  // shape.
  virtual void check(const Slices& slices) const = 0;
  // Fills each slice's tensor with its values, converted to its dtype. Calls check() first; if that
  // throws, nothing has changed.
  virtual void fill(const Slices& slices) const = 0;
};

// Divides slices that several ranks have alike, so that each rank writes some of them. Returns
// those of rank `copy` of `copies`. The largest slices go first, each to the rank with the fewest
// bytes. All these ranks pass the same list, in any order.
Slices deal(Slices same, int copy, int copies);

}  // namespace weft::checkpoint

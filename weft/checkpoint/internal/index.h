// The index of a part that is stored in several files: it tells which file holds which tensor or
// slice. The layout is Hugging Face's, plus the shapes of the whole tensors.
//
//   {"metadata": {"total_size": 65792},
//    "shapes": {"head.bias": [64], "blocks.0.weight": [256, 64]},
//    "weight_map": {"head.bias": "model-00001-of-00002.safetensors",
//                   "blocks.0.weight[0:128,0:64]": "model-00001-of-00002.safetensors",
//                   "blocks.0.weight[128:256,0:64]": "model-00002-of-00002.safetensors"}}
//
// The name of a slice is its tensor's name and its rectangle in Python's notation: [begin:end,
// ...].
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace weft::checkpoint::internal {

struct Index {
  std::int64_t total_bytes = 0;                             // of all tensors
  std::map<std::string, std::vector<std::int64_t>> shapes;  // of whole tensors, by name
  std::map<std::string, std::string> files;  // of each tensor or slice, by its name in that file
  bool operator==(const Index&) const = default;
};

std::string render_index(const Index& index);
// Throws Error(kCorrupt) with the file's name if the text has another layout, a file name leaves
// the folder, a tensor has no shape, or a slice reaches beyond its tensor's shape.
Index parse_index(std::string_view text, const std::string& file);

// A rectangle of a tensor.
struct SliceName {
  std::string tensor;
  std::vector<std::int64_t> offset, sizes;
  bool operator==(const SliceName&) const = default;
};
// "blocks.0.weight[128:256,0:64]".
std::string render_slice_name(const SliceName& slice);
// Parses such a name. Without a rectangle, offset and sizes are empty. Throws Error(kCorrupt) with
// `where` for an invalid rectangle.
SliceName parse_slice_name(const std::string& name, const std::string& where);

}  // namespace weft::checkpoint::internal

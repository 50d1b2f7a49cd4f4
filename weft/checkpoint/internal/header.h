// The header of a safetensors file: the dtype, shape and offsets of each tensor. Needs no libtorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/dtype.h"

namespace weft::checkpoint::internal {

constexpr std::size_t kMaxDims = 64;  // libtorch's own limit

struct Entry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  // in the data that follows the header
  std::int64_t end = 0;
};

struct Header {
  std::vector<Entry> entries;  // ordered by `begin`
  std::map<std::string, std::string> metadata;
};

constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference reader

// Returns the bytes of a tensor, or -1 if the product overflows or a size is negative.
std::int64_t bytes_of(DType dtype, const std::vector<std::int64_t>& shape);

// Parses the JSON text and checks each rule of the format: known dtypes, no duplicate or unknown
// key, sizes equal to shape times dtype, offsets contiguous from 0 to data_bytes without hole or
// overlap. Throws Error(kCorrupt) with the file, offset and tensor.
Header parse_header(std::string_view json, std::int64_t data_bytes, const std::string& file);

// Sorts the entries in file order and sets their offsets: widest dtype first, so that each tensor
// starts at a multiple of its element size, then by name. Returns the total bytes.
std::int64_t lay_out(std::vector<Entry>& entries);

// Returns the length word and the JSON text, padded with blanks to a multiple of 8. Throws
// Error(kInvalidArgument) if it is too long for readers, or a name is not UTF-8.
std::string render_header(const Header& header);

}  // namespace weft::checkpoint::internal

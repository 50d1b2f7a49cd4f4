// The header of a safetensors file, without tensors: what is where.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/dtype.h"

namespace weft::checkpoint::internal {

struct Entry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  // in the data that follows the header
  std::int64_t end = 0;
};

struct Header {
  std::vector<Entry> entries;  // by begin
  std::map<std::string, std::string> metadata;
};

constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kMaxHeaderBytes = 100'000'000;  // as the format's own reader has it

// The bytes of a tensor, or -1 where the product overflows or a size is negative.
std::int64_t bytes_of(DType dtype, const std::vector<std::int64_t>& shape);

// Reads the JSON text. Each rule of the format is checked: known dtypes, no duplicate or unknown
// key, sizes equal to shape times dtype, offsets contiguous from 0 to data_bytes without hole or
// overlap. Throws Error(kCorrupt) naming file, offset and tensor.
Header parse_header(std::string_view json, std::int64_t data_bytes, const std::string& file);

// Puts entries in the order of a file and gives each its place: widest dtype first, so that each
// tensor starts at a multiple of its element; then by name. Gives the bytes of all.
std::int64_t lay_out(std::vector<Entry>& entries);

// The length word and the JSON text, padded with blanks to a multiple of 8.
std::string render_header(const Header& header);

}  // namespace weft::checkpoint::internal

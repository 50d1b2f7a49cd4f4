// IDX, the format of MNIST and its kin (http://yann.lecun.com/exdb/mnist): big-endian magic 0x00
// 0x00 type ndim, ndim sizes, data; plain or gzip. Only bytes (type 0x08) are read: magic 2049 is a
// vector of labels, 2051 a stack of images.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/data/image_set.h"

namespace weft::data {

struct IdxArray {
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> values;  // row-major, as many as the shape says
};

struct IdxLimits {
  // Larger arrays are refused before memory is allocated.
  std::int64_t max_bytes = std::int64_t{1} << 30;
};

// Reads one file of 1 to 4 dimensions. gzip is inflated as a stream into the array itself; a header
// that claims more than its compressed file could hold is refused before allocation.
// Throws Error(kBadConfig) if the file can't be opened, Error(kCorrupt) naming file and offset if
// it is truncated, too large, neither gzip nor IDX, damaged (gzip's own checksum), or goes on after
// its end.
IdxArray read_idx(const std::string& path, IdxLimits limits = {});

// Fashion-MNIST from the four files of `dir` ({train,t10k}-{images-idx3,labels-idx1}-ubyte, with or
// without .gz; an empty name: Debian's folder). Throws as read_idx does, and Error(kCorrupt) where
// images and labels don't fit each other.
ImageSet load_fashion_mnist(const std::string& dir, Part part);

}  // namespace weft::data

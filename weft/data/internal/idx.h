// Reads IDX, the format of MNIST and similar data sets (http://yann.lecun.com/exdb/mnist), plain or
// compressed by gzip. A file has a big-endian magic (0x00 0x00 type ndim), ndim sizes, and the
// data. Only bytes (type 0x08) are supported: magic 2049 is a vector of labels, 2051 an array of
// images.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/data/image_set.h"

namespace weft::data {

struct IdxArray {
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> values;  // Row-major, as many as the product of the shape.
};

struct IdxLimits {
  // Larger arrays are refused before memory is allocated.
  std::int64_t max_bytes = std::int64_t{1} << 30;
};

// Reads one file of 1 to 4 dimensions. gzip is inflated as a stream into the array itself. If the
// header gives more bytes than the compressed file can contain, the file is refused before
// allocation. Throws Error(kBadConfig) if the file cannot be opened. Throws Error(kCorrupt), naming
// file and offset, if the file is truncated, too large, neither gzip nor IDX, damaged (by gzip's
// checksum), or has bytes after the data.
IdxArray read_idx(const std::string& path, IdxLimits limits = {});

// Loads Fashion-MNIST from the files of `dir` ({train,t10k}-{images-idx3,labels-idx1}-ubyte, with
// or without .gz). An empty `dir` is Debian's folder. Throws as read_idx does, and Error(kCorrupt)
// if images and labels do not fit each other.
ImageSet load_fashion_mnist(const std::string& dir, Part part);
// Throws as load_fashion_mnist() if one of the four files is not there.
void check_fashion_mnist(const std::string& dir);

}  // namespace weft::data

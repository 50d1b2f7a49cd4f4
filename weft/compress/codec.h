// Codecs: lossy encodings of numbers to fewer bytes. Pure functions; reducer.h keeps the memory
// between steps.
//
//   linear      bf16, f16, randomk: the sum of encodings is the encoding of the sum, so they can be
//               all-reduced
//   the others  int8, int4, sign, topk, threshold: decoded one by one and added
//
// Sources: signs with error feedback, Seide et al. 2014 ("1-bit stochastic gradient descent") and
// Karimireddy et al. 2019 ("Error feedback fixes SignSGD"); random rounding, Alistarh et al. 2017
// (QSGD); top-k, Aji & Heafield 2017, Lin et al. 2018 (Deep Gradient Compression); top-k and
// random-k with memory, Stich et al. 2018; threshold, Strom 2015; scales by block, Dettmers et al.
// 2022. PowerSGD needs matrices and is in internal/low_rank.cc.
//
// Infinity and NaN stay visible after decoding, and are never kept in a residual.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "weft/base/dtype.h"
#include "weft/compress/spec.h"

namespace weft::compress {

// Key of the random numbers.
struct Draw {
  std::uint64_t seed = 1;
  std::int64_t step = 0;
  std::uint32_t unit = 0;  // number of the buffer
  int rank = 0;            // ignored if all ranks must draw the same numbers
};

class Codec {
 public:
  virtual ~Codec() = default;
  // Bytes for this many numbers: exact if fixed(), otherwise an upper bound. A multiple of 4.
  virtual std::int64_t bytes(std::int64_t count) const = 0;
  virtual bool fixed() const { return true; }
  // Element type in which encodings can be summed over ranks. None if each encoding must be
  // decoded.
  virtual std::optional<DType> sums() const { return std::nullopt; }
  // True if it sends some numbers exactly, with a residual of zero, and omits the others.
  virtual bool sparse() const { return false; }
  // Appends the encoding to `wire`. `residual`, if given, receives the values minus the encoded
  // values; it may be `values` itself.
  virtual void encode(std::span<const float> values, const Draw& draw, std::vector<std::byte>& wire,
                      float* residual) const = 0;
  // Adds the decoded `wire` (4-byte aligned; bytes after its end are ignored). Throws
  // Error(kCorrupt) if it is invalid.
  virtual void add(std::span<const std::byte> wire, const Draw& draw,
                   std::span<float> values) const = 0;
};

// Makes a codec of any kind except none, powersgd and auto.
std::unique_ptr<Codec> make_codec(const Spec& spec);

}  // namespace weft::compress

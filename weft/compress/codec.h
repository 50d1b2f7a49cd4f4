// Codecs: how numbers become fewer bytes and come back, changed. Pure: what they remember between
// steps is in reducer.h's keeping.
//
//   linear      bf16, f16, randomk: the sum of encodings is the encoding of the sum, so they ride
//               all-reduce
//   the others  int8, int4, sign, topk, threshold: decoded one by one and added
//
// Sources: signs with error feedback, Seide et al. 2014 ("1-bit stochastic gradient descent") and
// Karimireddy et al. 2019 ("Error feedback fixes SignSGD"); random rounding, Alistarh et al. 2017
// (QSGD); top-k, Aji & Heafield 2017, Lin et al. 2018 (Deep Gradient Compression); top-k and
// random-k with memory, Stich et al. 2018; threshold, Strom 2015; scales by block, Dettmers et al.
// 2022. PowerSGD needs matrices and is in internal/low_rank.cc.
//
// Infinity and NaN stay visible where they are decoded, and are never kept in a residual.
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

// The address of random numbers.
struct Draw {
  std::uint64_t seed = 1;
  std::int64_t step = 0;
  std::uint32_t unit = 0;  // which buffer
  int rank = 0;            // ignored where all ranks must draw alike
};

class Codec {
 public:
  virtual ~Codec() = default;
  // Bytes for so many numbers: exactly, where fixed(), else at most. A multiple of 4.
  virtual std::int64_t bytes(std::int64_t count) const = 0;
  virtual bool fixed() const { return true; }
  // The element type in which encodings may be summed over ranks; none where each has to be
  // decoded.
  virtual std::optional<DType> sums() const { return std::nullopt; }
  // Sends some numbers whole, so that their residual is zero, and leaves the others out.
  virtual bool sparse() const { return false; }
  // Appends to `wire`. `residual`, where given, gets values minus what was encoded; it may be
  // `values` itself.
  virtual void encode(std::span<const float> values, const Draw& draw, std::vector<std::byte>& wire,
                      float* residual) const = 0;
  // Adds what `wire` (4-byte aligned; bytes behind its end are ignored) says. Throws
  // Error(kCorrupt) where that cannot be.
  virtual void add(std::span<const std::byte> wire, const Draw& draw,
                   std::span<float> values) const = 0;
};

// Of every kind but none, powersgd and auto.
std::unique_ptr<Codec> make_codec(const Spec& spec);

}  // namespace weft::compress

// Spec: the codec that compresses gradients, as a string "<codec>[:<amount>][,<option>…]".
// docs/compression.md explains codecs and options.
//
//   none               no compression
//   bf16, f16          16-bit floats
//   int8:64, int4:64   8 or 4 bits per number, one scale for each block of 64 numbers
//   sign:1024          1 bit per number, one scale for each block; the smallest tensors
//                      are not compressed
//   topk:0.01          this share of the numbers, the largest in magnitude
//   randomk:0.01       this share of the numbers, the same on all ranks, each number in its turn;
//                      small tensors more often than large ones
//   threshold:0.001    the numbers of at least this magnitude
//   powersgd:4         matrices as products of two thin matrices of this rank; vectors uncompressed
//   auto               measures link and processor, then takes one of these, or none
//
//   ef=on, ef=off      error feedback: adds the numbers that were not sent to the next step's
//                      gradient. On for biased codecs: all but bf16, f16 and stochastic. Without
//                      it, randomk is scaled up so that its expectation is the gradient.
//   delta              sends the difference to the value that the other ranks have (EF21). It
//                      replaces error feedback.
//   momentum=before, momentum=after
//                      SGD's momentum, of each rank's gradient before the codec or of the sum after
//                      it. After: momentum multiplies gradients that come late and all at once.
//                      Before: momentum ends for a number that topk or threshold sends. randomk
//                      delays gradients as momentum would, so it sends their whole effect at once.
//                      `before` is the default of sign and randomk with error feedback. Other
//                      optimizers keep their momentum.
//   stochastic         int8, int4: random rounding, so that the expectation is the gradient
//   warmup=N           no compression in the first N steps
//   seed=N             seed of the random numbers
#pragma once

#include <cstdint>
#include <string>

namespace weft::compress {

enum class Kind {
  kNone,
  kBf16,
  kF16,
  kInt8,
  kInt4,
  kSign,
  kTopK,
  kRandomK,
  kThreshold,
  kPowerSgd,
  kAuto
};

// Memory of the gradients that a rank could not send.
enum class Memory { kNone, kFeedback, kDelta };

struct Spec {
  Kind kind = Kind::kNone;
  double amount = 0;  // Block size, share, magnitude or rank.
  Memory memory = Memory::kNone;
  bool stochastic = false;
  bool momentum_before = false;
  std::int64_t warmup = 0;
  std::uint64_t seed = 1;

  bool operator==(const Spec&) const = default;
};

// Throws Error(kInvalidArgument), naming the mistake, the valid names and, for a misspelled name,
// the nearest.
Spec parse(const std::string& text);

// Returns the full text, with every option that the codec takes. parse(to_string(spec)) == spec.
std::string to_string(const Spec& spec);

}  // namespace weft::compress

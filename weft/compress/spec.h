// What to compress gradients with, as a string: "<codec>[:<amount>][,<option>…]".
//
//   none                       as they are
//   bf16, f16                  16-bit floats
//   int8:64, int4:64           8 or 4 bits a number, one scale for each block of so many numbers
//   sign:1024                  1 bit a number, one scale a block; the smallest tensors as they are
//   topk:0.01                  that share of the numbers, the largest in magnitude
//   randomk:0.01               that share, the same numbers on all ranks, each in its turn; small tensors more often than large ones
//   threshold:0.001            the numbers of at least that magnitude
//   powersgd:4                 matrices as products of two thin ones of that rank; vectors as they are
//   auto                       measures link and processor, then takes one of these, or none
//
//   ef=on, ef=off   error feedback: what was not sent is added to the next step's gradient. On where codes are biased: all but bf16, f16,
//                   stochastic. Without it randomk is scaled up so that its expectation is the gradient.
//   delta           sends the difference to what the others believe (EF21) instead; takes the place of error feedback
//   momentum=before, momentum=after
//                   SGD's momentum is taken of each rank's gradient before the codec, or of the sum after it. After, it multiplies what
//                   comes late and all at once; before, it ends for a number that topk or threshold sends, and randomk, which makes
//                   gradients wait as momentum would, sends all that it would make of them at once. Before is the default of sign and
//                   randomk with error feedback. Other optimisers keep theirs.
//   stochastic      int8, int4: rounds at random, so that the expectation is the gradient
//   warmup=N        the first N steps are not compressed
//   seed=N          of what is drawn
#pragma once

#include <cstdint>
#include <string>

namespace weft::compress {

enum class Kind { kNone, kBf16, kF16, kInt8, kInt4, kSign, kTopK, kRandomK, kThreshold, kPowerSgd, kAuto };

// What a rank remembers of what it could not send.
enum class Memory { kNone, kFeedback, kDelta };

struct Spec {
  Kind kind = Kind::kNone;
  double amount = 0;  // block, share, magnitude or rank
  Memory memory = Memory::kNone;
  bool stochastic = false;
  bool momentum_before = false;
  std::int64_t warmup = 0;
  std::uint64_t seed = 1;

  bool operator==(const Spec&) const = default;
};

// Throws Error(kInvalidArgument) saying what is wrong, what there is and, for a misspelt name, the nearest.
Spec parse(const std::string& text);

// In full: every option that the codec takes. parse(to_string(spec)) == spec.
std::string to_string(const Spec& spec);

}  // namespace weft::compress

// Random numbers by address: Philox 4x32-10, a counter-based generator (Salmon, Moraes, Dror, Shaw,
// "Parallel random numbers: as easy as 1, 2, 3", SC 2011). A value depends on (seed, stream, index)
// and on nothing that was drawn elsewhere, so that any rank can draw what belongs to any sample,
// after a resume as before. The results are part of what weft promises to repeat: they never
// change.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weft {

// One block of the generator: four words for a counter and a key (words as in the paper's reference
// vectors).
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key);

// The sequence at (seed, stream, index), from its start: 2^34 words, shared with no other address.
// A few bytes, cheap to make for every sample. Not for several threads at once.
class Random {
 public:
  explicit Random(std::uint64_t seed, std::uint32_t stream = 0, std::uint64_t index = 0);

  std::uint32_t next_u32();
  std::uint64_t next_u64();
  // The next words, as next_u32() would give them, in a third of the time.
  void fill(std::span<std::uint32_t> words);
  // In [0, 1): a multiple of 2^-53, of 2^-24.
  double uniform();
  float uniform_float();
  // In [0, bound), each equally likely (Lemire, "Fast random integer generation in an interval",
  // 2019). bound >= 1.
  std::uint64_t below(std::uint64_t bound);

 private:
  std::array<std::uint32_t, 2> key_;
  std::array<std::uint32_t, 4> counter_;
  std::array<std::uint32_t, 4> words_{};
  int left_ = 0;
};

// The numbers 0 … count-1 in an order that (seed, epoch) decides, each of the count! orders equally
// likely (Fisher-Yates). O(count).
std::vector<std::int64_t> permutation(std::int64_t count, std::uint64_t seed, std::uint64_t epoch);

// Which mask of dropout. `draw` counts masks; any 64-bit number. Stream "drop" (0x64726f70) of
// philox, from which nothing else draws. Two masks share no number if both have at most 2^34
// elements. Larger masks share none either while all draws stay below 2^32.
struct DropoutAddress {
  std::uint64_t seed = 0, draw = 0;
};
// The factors of a tensor's elements number first, first + 1, …: 0 with probability p in [0, 1),
// else 1 / (1 - p), each decided by address and number alone, so that a part of a tensor has its
// part of the whole's mask.
void dropout_factors(std::span<float> to, std::uint64_t first, double p,
                     const DropoutAddress& address);

// Random bytes of the system, for names, identities and secrets: they do not repeat. Throws
// Error(kUnavailable) if the system gives none. So does random_number().
std::string random_bytes(std::size_t count);
// Not 0.
std::uint64_t random_number();

}  // namespace weft

#include "weft/base/random.h"

#include <sys/random.h>
#include <sys/types.h>

#include <cstring>
#include <numeric>
#include <utility>

#include "weft/base/clones/clones.h"
#include "weft/base/error.h"

namespace weft {
namespace {

// Users' Random(seed, stream) count streams from 0; permutations use the last stream.
constexpr std::uint32_t kPermutationStream = 0xFFFFFFFF;
constexpr std::uint32_t kDropoutStream = 0x64726f70;  // "drop"

__extension__ using Wide = unsigned __int128;

using Block = std::array<std::uint32_t, 4>;
using Key = std::array<std::uint32_t, 2>;
constexpr int kRounds = 10;
constexpr std::uint64_t kEven = 0xD2511F53, kOdd = 0xCD9E8D57;

Block next_round(const Block& counter, const Key& key) {
  const std::uint64_t even = kEven * counter[0], odd = kOdd * counter[2];
  return {static_cast<std::uint32_t>(odd >> 32) ^ counter[1] ^ key[0],
          static_cast<std::uint32_t>(odd),
          static_cast<std::uint32_t>(even >> 32) ^ counter[3] ^ key[1],
          static_cast<std::uint32_t>(even)};
}

void next_key(Key& key) {
  key[0] += 0x9E3779B9;  // the golden ratio
  key[1] += 0xBB67AE85;  // sqrt(3) - 1
}

// The number of blocks that are computed together. Their rounds do not wait for each other, so
// compilers make vectors of them.
constexpr std::size_t kLanes = 8;

// The blocks from `counter` on.
WEFT_CLONES void next_blocks(const Block& counter, Key key, std::uint32_t* words) {
  std::array<std::uint32_t, kLanes> a, b, c, d;
  for (std::size_t i = 0; i < kLanes; ++i) {
    a[i] = counter[0] + static_cast<std::uint32_t>(i);
    b[i] = counter[1];
    c[i] = counter[2];
    d[i] = counter[3];
  }
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < kLanes; ++i) {
      const Block next = next_round({a[i], b[i], c[i], d[i]}, key);
      a[i] = next[0];
      b[i] = next[1];
      c[i] = next[2];
      d[i] = next[3];
    }
    next_key(key);
  }
  for (std::size_t i = 0; i < kLanes; ++i) {
    words[4 * i] = a[i];
    words[4 * i + 1] = b[i];
    words[4 * i + 2] = c[i];
    words[4 * i + 3] = d[i];
  }
}

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    counter = next_round(counter, key);
    next_key(key);
  }
  return counter;
}

Random::Random(std::uint64_t seed, std::uint32_t stream, std::uint64_t index)
    : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
      counter_{0, stream, static_cast<std::uint32_t>(index),
               static_cast<std::uint32_t>(index >> 32)} {}

std::uint32_t Random::next_u32() {
  if (left_ == 0) {
    words_ = philox4x32(counter_, key_);
    ++counter_[0];
    left_ = 4;
  }
  return words_[static_cast<std::size_t>(4 - left_--)];
}

void Random::fill(std::span<std::uint32_t> words) {
  constexpr std::size_t kWords = 4 * kLanes;
  std::size_t done = 0;
  for (; done < words.size() && left_ > 0; ++done) words[done] = next_u32();
  for (; words.size() - done >= kWords; done += kWords) {
    next_blocks(counter_, key_, words.data() + done);
    counter_[0] += kLanes;
  }
  for (; done < words.size(); ++done) words[done] = next_u32();
}

std::uint64_t Random::next_u64() {
  const std::uint64_t low = next_u32();
  return low | static_cast<std::uint64_t>(next_u32()) << 32;
}

double Random::uniform() { return static_cast<double>(next_u64() >> 11) * 0x1p-53; }

float Random::uniform_float() { return static_cast<float>(next_u32() >> 8) * 0x1p-24f; }

std::uint64_t Random::below(std::uint64_t bound) {
  WEFT_REQUIRE(bound > 0, "Random::below needs a bound of at least 1");
  Wide product = Wide{next_u64()} * bound;
  if (static_cast<std::uint64_t>(product) < bound) {
    // Rejects the first 2^64 mod bound remainders and draws again. Otherwise some results would be
    // more likely by one part in 2^64 / bound.
    const std::uint64_t threshold = -bound % bound;
    while (static_cast<std::uint64_t>(product) < threshold) product = Wide{next_u64()} * bound;
  }
  return static_cast<std::uint64_t>(product >> 64);
}

std::vector<std::int64_t> permutation(std::int64_t count, std::uint64_t seed, std::uint64_t epoch) {
  WEFT_REQUIRE(count >= 0, "a permutation needs a count of at least 0");
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  Random random(seed, kPermutationStream, epoch);
  for (std::size_t left = order.size(); left > 1; --left)
    std::swap(order[left - 1], order[random.below(left)]);
  return order;
}

void dropout_factors(std::span<float> to, std::uint64_t first, double p,
                     const DropoutAddress& address) {
  const std::array<std::uint32_t, 2> key{static_cast<std::uint32_t>(address.seed),
                                         static_cast<std::uint32_t>(address.seed >> 32)};
  const auto threshold = static_cast<std::uint32_t>(p * 0x1p32);
  const auto kept = static_cast<float>(1 / (1 - p));
  std::size_t done = 0;
  while (done < to.size()) {
    const std::uint64_t at = first + done, block = at / 4;
    // The counter has 32 bits for the block number. The rest goes into the high bits of `draw`.
    const std::uint64_t draw = address.draw ^ (block >> 32 << 32);
    const auto words =
        philox4x32({static_cast<std::uint32_t>(block), kDropoutStream,
                    static_cast<std::uint32_t>(draw), static_cast<std::uint32_t>(draw >> 32)},
                   key);
    for (std::size_t word = at % 4; word < 4 && done < to.size(); ++word, ++done)
      to[done] = words[word] >= threshold ? kept : 0.0F;
  }
}

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  if (::getrandom(bytes.data(), count, 0) != static_cast<ssize_t>(count))
    throw Error(Errc::kUnavailable, "the system gives no random bytes");
  return bytes;
}

std::uint64_t random_number() {
  std::uint64_t number = 0;
  while (number == 0) std::memcpy(&number, random_bytes(sizeof number).data(), sizeof number);
  return number;
}

}  // namespace weft

// Notices that a program has written to shared weights: each optimizer update compares them with
// what the last one wrote. The weights are in a core's cache then, since the update reads them too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace weft::engine::internal {

// Sums of 32-bit numbers, and sums of these sums, in four lanes.
struct BitSums {
  using Lanes [[gnu::vector_size(16)]] = std::uint32_t;
  Lanes sum = {}, sums = {};

  void add(const std::byte* from) {
    Lanes some;
    std::memcpy(&some, from, sizeof(some));
    sum += some;
    sums += sum;
  }
  std::uint64_t mix(std::uint64_t all) const {
    for (int lane = 0; lane < 4; ++lane)
      all = (all ^ sum[lane] ^ (std::uint64_t{sums[lane]} << 32)) * 1099511628211U;
    return all;
  }
};

// A number that depends on each byte and its place. Costs two additions for 16 bytes.
inline std::uint64_t bits_of(const void* data, std::size_t bytes, std::int64_t place) {
  constexpr std::size_t kStep = 4 * sizeof(BitSums::Lanes);
  BitSums a, b, c, d;
  const auto add = [&](const std::byte* from) {
    a.add(from);
    b.add(from + 16);
    c.add(from + 32);
    d.add(from + 48);
  };
  const auto* const begin = static_cast<const std::byte*>(data);
  std::size_t at = 0;
  for (; at + kStep <= bytes; at += kStep) add(begin + at);
  if (at < bytes) {
    std::byte rest[kStep] = {};
    std::memcpy(rest, begin + at, bytes - at);
    add(rest);
  }
  return d.mix(c.mix(b.mix(a.mix(0)))) * (2 * static_cast<std::uint64_t>(place) + 1);
}

// Of a part of the weights, after an update. All zero: not known.
struct Written {
  std::uint64_t generation = 0;  // ModuleWatch::generation() of its parameters
  std::uint64_t bits = 0;
};

// One update of this part. Call before() and after() with equal arguments for each piece.
class WrittenCheck {
 public:
  explicit WrittenCheck(bool on) : on_(on) {}
  bool on() const { return on_; }
  void before(const void* data, std::size_t bytes, std::int64_t place) {
    if (on_) before_ += bits_of(data, bytes, place);
  }
  void after(const void* data, std::size_t bytes, std::int64_t place) {
    if (on_) after_ += bits_of(data, bytes, place);
  }
  // A piece without a gradient.
  void stays(const void* data, std::size_t bytes, std::int64_t place) {
    if (!on_) return;
    const std::uint64_t bits = bits_of(data, bytes, place);
    before_ += bits;
    after_ += bits;
  }
  // Ends it. False if the weights were not as the last update left them.
  bool end(Written& written, std::uint64_t generation) const {
    if (!on_) return true;
    const bool same = written.generation != generation || written.bits == before_;
    written = {generation, after_};
    return same;
  }

 private:
  const bool on_;
  std::uint64_t before_ = 0, after_ = 0;
};

}  // namespace weft::engine::internal

// The random order in which a solver visits its rows: each row once a pass.
//
// A pass visits blocks of 32 neighboring rows in random order, and the rows of a block in random
// order. A block lies in one place of memory. A fully random order takes twice as long per row,
// and needs the same number of passes.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/base/random.h"

namespace weft::linear {

class RowOrder {
 public:
  RowOrder(std::size_t rows, std::uint64_t seed) : rows_(rows), seed_(seed) { order_.resize(rows); }

  std::size_t rows() const { return rows_; }
  // The order of the pass that was made last.
  const std::vector<std::uint32_t>& order() const { return order_; }
  // Makes the order of a pass.
  void make(std::uint64_t pass) {
    const std::size_t blocks = (rows_ + kBlock - 1) / kBlock;
    const auto permuted = permutation(static_cast<std::int64_t>(blocks), seed_, pass);
    Random random(seed_, kStream, pass);
    std::size_t at = 0;
    for (const std::int64_t block : permuted) {
      const std::size_t first = static_cast<std::size_t>(block) * kBlock;
      const std::size_t size = rows_ - first < kBlock ? rows_ - first : kBlock;
      shuffle(first, size, order_.data() + at, random);
      at += size;
    }
  }

 private:
  static constexpr std::size_t kBlock = 32;
  static constexpr std::uint32_t kStream = 0x726f7773;  // "rows"

  // Fisher and Yates with 16 random bits a step. Their bias is below 32 / 2^16.
  static void shuffle(std::size_t first, std::size_t size, std::uint32_t* to, Random& random) {
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < size; ++i) {
      bits = i % 2 == 0 ? random.next_u32() : bits >> 16;
      const std::size_t j = (bits & 0xffff) * (i + 1) >> 16;
      to[i] = to[j];
      to[j] = static_cast<std::uint32_t>(first + i);
    }
  }

  std::size_t rows_;
  std::uint64_t seed_;
  std::vector<std::uint32_t> order_;
};

}  // namespace weft::linear

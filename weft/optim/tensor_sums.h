// Sums over whole tensors whose elements lie on several ranks: each rank adds its elements, and an
// all-reduce of the memory joins the ranks.
//
// Plain sums are float64. Exact sums are integers of 704 bits, so their bits do not depend on the
// order of the additions or on the division over ranks. An exact sum takes 200 bytes instead of 8,
// and about 10 times as long. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::optim {

class TensorSums {
 public:
  // `count` sums, all zero.
  TensorSums(std::size_t count, bool exact);

  // Adds x, which is at least 0. Exact sums round x down to a multiple of 2^-352. They become NaN
  // if x is NaN or at least 2^352. At most 2^30 additions to a sum.
  void add(std::size_t sum, double x);
  // Adds the squares of `count` numbers, which are rounded to float64 one by one.
  void add_squares(std::size_t sum, const float* values, std::int64_t count);
  void add_squares(std::size_t sum, const double* values, std::int64_t count);
  // Adds the square of value i to the sum `first` + i.
  void add_each_square(std::size_t first, const float* values, std::int64_t count);
  void add_each_square(std::size_t first, const double* values, std::int64_t count);
  double value(std::size_t sum) const;

  std::size_t count() const { return count_; }
  bool exact() const { return exact_; }
  // Numbers of one sum in memory: int64 if exact, else float64. Sums lie one after the other. Their
  // addition, number by number, adds sums of several ranks.
  std::size_t width() const { return exact_ ? kLimbs + 1 : 1; }
  std::int64_t* integers(std::size_t sum) { return integers_.data() + sum * width(); }
  double* doubles(std::size_t sum) { return doubles_.data() + sum; }

 private:
  // Limb i counts 2^(32 i - 352). The last number counts operands that are not finite.
  static constexpr std::size_t kLimbs = 24;
  static void carry(std::int64_t* limbs);
  static void add_to(std::int64_t* limbs, double x);
  template <class Number>
  void add_exact_squares(std::size_t sum, const Number* values, std::int64_t count);
  template <class Number>
  void add_each(std::size_t first, const Number* values, std::int64_t count);

  std::size_t count_;
  bool exact_;
  std::vector<std::int64_t> integers_;
  std::vector<double> doubles_;
};

}  // namespace weft::optim

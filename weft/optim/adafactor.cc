#include "weft/optim/adafactor.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace weft::optim {
namespace {

constexpr std::int64_t kRunBlock = 1024;

// Calls run(offset in the step, count, row, column) for the part of each row that the step has, in
// blocks. A tensor that is not factored is one row.
template <class Run>
void each_run(std::int64_t begin, std::int64_t count, const FactoredShape& shape, const Run& run) {
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t row = (begin + done) / shape.columns,
                       column = (begin + done) % shape.columns;
    const std::int64_t length = std::min({shape.columns - column, count - done, kRunBlock});
    run(done, length, row, column);
    done += length;
  }
}

// Index of the sum and factor of a column of the matrix to which the row belongs.
std::int64_t column_at(const FactoredShape& shape, std::int64_t row, std::int64_t column) {
  if (!shape.is_factored()) return column;
  return shape.outer * shape.rows + row / shape.rows * shape.columns + column;
}

// Writes u of a run.
template <class Number>
void write_update(const FlatStep<Number>& at, const FactoredShape& shape,
                  const std::vector<Number>& factors, std::int64_t row, std::int64_t column,
                  std::int64_t offset, std::int64_t count, Number* into) {
  const Number of_row = shape.is_factored() ? factors[static_cast<std::size_t>(row)] : Number{1};
  const Number* const of_column = factors.data() + column_at(shape, row, column);
  for (std::int64_t i = 0; i < count; ++i)
    into[i] = at.gradient[offset + i] * (of_row * of_column[i]);
}

}  // namespace

FactoredShape factored_shape(const std::vector<std::int64_t>& sizes) {
  const std::size_t dims = sizes.size();
  const std::int64_t all =
      std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
  if (dims < 2 || all == 0) return {1, 0, all};
  const std::int64_t rows = sizes[dims - 2], columns = sizes[dims - 1];
  return {all / (rows * columns), rows, columns};
}

template <class Number>
void add_gradient(const FlatStep<Number>& at, std::int64_t begin, const FactoredShape& shape,
                  TensorSums& sums, std::size_t first) {
  each_run(begin, at.count, shape, [&](auto offset, auto count, auto row, auto column) {
    const Number* const values = at.gradient + offset;
    if (shape.is_factored()) sums.add_squares(first + static_cast<std::size_t>(row), values, count);
    sums.add_each_square(first + static_cast<std::size_t>(column_at(shape, row, column)), values,
                         count);
  });
}

template <class Number>
std::vector<Number> update_moments(const Adafactor& rule, std::int64_t step,
                                   const FactoredShape& shape, const TensorSums& sums,
                                   std::size_t first, Number* moments) {
  const double keep = 1 - std::pow(static_cast<double>(step), rule.decay_power);
  const auto rows = static_cast<std::size_t>(shape.outer * shape.rows);
  std::vector<Number> factors(shape.sums());
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const double terms =
        !shape.is_factored() ? 1 : static_cast<double>(i < rows ? shape.columns : shape.rows);
    const double mean = sums.value(first + i) / terms + rule.eps1;
    moments[i] = static_cast<Number>(keep * static_cast<double>(moments[i]) + (1 - keep) * mean);
    factors[i] = static_cast<Number>(1 / std::sqrt(static_cast<double>(moments[i])));
  }
  for (std::size_t begin = 0; begin < rows; begin += static_cast<std::size_t>(shape.rows)) {
    double sum = 0;
    for (std::int64_t i = 0; i < shape.rows; ++i)
      sum += static_cast<double>(moments[begin + static_cast<std::size_t>(i)]);
    const double root = std::sqrt(sum / static_cast<double>(shape.rows));
    for (std::int64_t i = 0; i < shape.rows; ++i) {
      Number& factor = factors[begin + static_cast<std::size_t>(i)];
      const double moment = static_cast<double>(moments[begin + static_cast<std::size_t>(i)]);
      factor = static_cast<Number>(root / std::sqrt(moment));
    }
  }
  return factors;
}

template <class Number>
void add_update(const FlatStep<Number>& at, std::int64_t begin, const FactoredShape& shape,
                const std::vector<Number>& factors, TensorSums& sums, std::size_t sum) {
  alignas(64) Number block[kRunBlock];
  each_run(begin, at.count, shape, [&](auto offset, auto count, auto row, auto column) {
    write_update(at, shape, factors, row, column, offset, count, block);
    sums.add_squares(sum, at.weight + offset, count);
    sums.add_squares(sum + 1, block, count);
  });
}

template <class Number>
void end_step(const Adafactor& rule, const FlatStep<Number>& at, std::int64_t begin,
              const FactoredShape& shape, const std::vector<Number>& factors,
              const RootMeans& means) {
  const double rate = rule.lr * std::max(rule.eps2, means.weight);
  const auto scale = static_cast<Number>(rate / std::max(1.0, means.update / rule.clip)),
             kept = static_cast<Number>(1 - rate * rule.weight_decay),
             beta1 = static_cast<Number>(rule.beta1), rest = static_cast<Number>(1 - rule.beta1);
  Number* const mean = at.state[0];
  alignas(64) Number block[kRunBlock];
  each_run(begin, at.count, shape, [&](auto offset, auto count, auto row, auto column) {
    write_update(at, shape, factors, row, column, offset, count, block);
    for (std::int64_t i = 0; i < count; ++i) {
      Number change = scale * block[i];
      if (mean != nullptr) {
        Number& m = mean[offset + i];
        change = m = beta1 * m + rest * change;
      }
      Number& w = at.weight[offset + i];
      w = kept * w - change;
    }
  });
}

template void add_gradient(const FlatStep<float>&, std::int64_t, const FactoredShape&, TensorSums&,
                           std::size_t);
template std::vector<float> update_moments(const Adafactor&, std::int64_t, const FactoredShape&,
                                           const TensorSums&, std::size_t, float*);
template void add_update(const FlatStep<float>&, std::int64_t, const FactoredShape&,
                         const std::vector<float>&, TensorSums&, std::size_t);
template void end_step(const Adafactor&, const FlatStep<float>&, std::int64_t, const FactoredShape&,
                       const std::vector<float>&, const RootMeans&);
template void add_gradient(const FlatStep<double>&, std::int64_t, const FactoredShape&, TensorSums&,
                           std::size_t);
template std::vector<double> update_moments(const Adafactor&, std::int64_t, const FactoredShape&,
                                            const TensorSums&, std::size_t, double*);
template void add_update(const FlatStep<double>&, std::int64_t, const FactoredShape&,
                         const std::vector<double>&, TensorSums&, std::size_t);
template void end_step(const Adafactor&, const FlatStep<double>&, std::int64_t,
                       const FactoredShape&, const std::vector<double>&, const RootMeans&);

}  // namespace weft::optim

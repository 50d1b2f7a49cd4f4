// PowerSGD (Vogels, Karimireddy, Jaggi 2019): each matrix M is sent as P Q^T, with P = M Q
// (orthogonalized) and Q = M^T P, starting from the Q of the previous step. This is one step of
// subspace iteration per training step, which tracks the slowly changing top singular vectors.
//
//   round 1   all-reduce of the P of all matrices of the buffer, and of values outside matrices
//             (uncompressed)
//   round 2   all-reduce of the Q of all matrices
//
// Both products are linear in M, so the result is the approximation of the summed gradient, the
// same on every rank. Each rank's residual is its own M - P (M^T P)^T, and the sum of the residuals
// is exactly the error of the approximation.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "weft/base/random.h"
#include "weft/compress/internal/staged.h"
#include "weft/kernels/encode.h"

namespace weft::compress::internal {
namespace {

// A matrix, its rank, and the positions of its factors.
struct Factored {
  std::int64_t first = 0;
  kernels::LowRankArgs shape;
  std::int64_t left = 0, right = 0;  // first elements of its factors in the flat arrays
};

// The matrices that are compressed, and the rest.
struct Division {
  std::vector<Factored> matrices;
  // [first, end) ranges that are sent uncompressed.
  std::vector<std::pair<std::int64_t, std::int64_t>> rest;
  std::int64_t left_length = 0, right_length = 0, rest_length = 0;
};

Division divide(const Spec& spec, const Unit& unit) {
  Division division;
  std::int64_t at = 0;
  const auto leave = [&](std::int64_t end) {
    if (end > at) division.rest.emplace_back(at, end);
    division.rest_length += std::max<std::int64_t>(0, end - at);
  };
  for (const Matrix& matrix : unit.matrices) {
    const auto rank =
        std::min({static_cast<std::int64_t>(spec.amount), matrix.rows, matrix.columns});
    if ((matrix.rows + matrix.columns) * rank >= matrix.rows * matrix.columns) continue;
    leave(matrix.first);
    at = matrix.first + matrix.rows * matrix.columns;
    division.matrices.push_back({matrix.first,
                                 {matrix.rows, matrix.columns, static_cast<int>(rank)},
                                 division.left_length,
                                 division.right_length});
    division.left_length += matrix.rows * rank;
    division.right_length += matrix.columns * rank;
  }
  leave(unit.count);
  return division;
}

double dot(const float* a, const float* b, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i)
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

// Gram-Schmidt, each vector twice (Giraud et al. 2005: then they are orthogonal to working
// precision). A vector in the span of earlier ones becomes zero, since it adds no information.
void orthogonalise(float* vectors, std::int64_t length, int count) {
  for (int k = 0; k < count; ++k) {
    float* const vector = vectors + k * length;
    const double before = std::sqrt(dot(vector, vector, length));
    for (int pass = 0; pass < 2; ++pass) {
      for (int j = 0; j < k; ++j) {
        const float* const other = vectors + j * length;
        const auto along = static_cast<float>(dot(vector, other, length));
        for (std::int64_t i = 0; i < length; ++i) vector[i] -= along * other[i];
      }
    }
    const double norm = std::sqrt(dot(vector, vector, length));
    const float scale =
        norm > 1e-5 * before && norm > 1e-30 ? static_cast<float>(1.0 / norm) : 0.0f;
    if (std::isnan(norm)) continue;  // NaN stays visible in the result
    for (std::int64_t i = 0; i < length; ++i) vector[i] *= scale;
  }
}

class LowRankReducer final : public StagedReducer {
 public:
  LowRankReducer(const Spec& spec, const Unit& unit, Division division)
      : StagedReducer(spec, unit),
        division_(std::move(division)),
        left_(static_cast<std::size_t>(division_.left_length + division_.rest_length)),
        right_(static_cast<std::size_t>(division_.right_length)),
        memory_(spec.memory == Memory::kNone ? 0 : static_cast<std::size_t>(unit.count)),
        agreed_(delta() ? static_cast<std::size_t>(unit.count) : 0) {
    for (const Factored& matrix : division_.matrices) {
      for (int k = 0; k < matrix.shape.rank; ++k) start_over(matrix, k);
    }
  }

  std::int64_t bytes_sent() const override {
    return all_reduce_bytes(
        4 * (division_.left_length + division_.rest_length + division_.right_length), unit_.world);
  }
  const char* exchange() const override { return "low rank"; }

 private:
  std::vector<Remembered*> memory() override { return {&right_, &memory_, &agreed_}; }
  std::vector<Remembered*> common_memory() override { return {&right_, &agreed_}; }
  std::optional<Round> stage(int stage) override {
    if (stage == 0) return send_left();
    if (stage == 1) return send_right();
    take();
    return std::nullopt;
  }

  float* left(const Factored& matrix) { return left_.data() + matrix.left; }
  float* right(const Factored& matrix) { return right_.now().data() + matrix.right; }
  // For each uncompressed range: its position in the values, its position in left_, and its length.
  template <class Visit>
  void each_rest(const Visit& visit) {
    float* at = left_.data() + division_.left_length;
    for (const auto& [first, end] : division_.rest) {
      visit(first, at, static_cast<std::size_t>(end - first));
      at += end - first;
    }
  }

  // The same random vector on all ranks.
  void start_over(const Factored& matrix, int k) {
    Random random(spec_.seed, unit_.id, static_cast<std::uint64_t>(matrix.right + k));
    float* const vector = right(matrix) + k * matrix.shape.columns;
    for (std::int64_t j = 0; j < matrix.shape.columns; ++j)
      vector[j] = random.uniform_float() - 0.5f;
  }

  Round send_left() {
    const auto x = values();
    if (spec_.memory == Memory::kFeedback) {
      const auto before = memory_.rewrite();  // send_right() writes it
      for (std::size_t i = 0; i < x.size(); ++i) x[i] += before[i];
    } else if (delta()) {
      memory_.change();
      agreed_.change();
      const auto before = memory_.now();
      for (std::size_t i = 0; i < x.size(); ++i) x[i] -= before[i];
    }
    right_.change();
    for (const Factored& matrix : division_.matrices)
      kernels::multiply_right(matrix.shape, x.data() + matrix.first, right(matrix), left(matrix));
    each_rest([&](std::int64_t first, float* at, std::size_t n) {
      std::memcpy(at, x.data() + first, n * sizeof(float));
    });
    return {Round::How::kSum, DType::kF32, static_cast<std::int64_t>(left_.size()), left_.data(),
            nullptr};
  }

  Round send_right() {
    const auto x = values(), memory = memory_.now();
    if (spec_.memory == Memory::kFeedback) std::copy(x.begin(), x.end(), memory.begin());
    for (const Factored& matrix : division_.matrices) {
      orthogonalise(left(matrix), matrix.shape.rows, matrix.shape.rank);
      kernels::multiply_left(matrix.shape, x.data() + matrix.first, left(matrix), right(matrix));
      if (spec_.memory == Memory::kNone) continue;
      const float factor = delta() ? 1.0f : -1.0f;
      kernels::add_low_rank(matrix.shape, {left(matrix), right(matrix), factor},
                            memory.data() + matrix.first);
    }
    each_rest([&](std::int64_t first, float*, std::size_t n) {
      if (spec_.memory == Memory::kFeedback) std::fill_n(memory.begin() + first, n, 0.0f);
      for (std::size_t i = 0; i < n && delta(); ++i)
        memory[static_cast<std::size_t>(first) + i] += x[static_cast<std::size_t>(first) + i];
    });
    return {Round::How::kSum, DType::kF32, static_cast<std::int64_t>(right_.size()),
            right_.now().data(), nullptr};
  }

  void take() {
    float* const result = delta() ? agreed_.now().data() : values().data();
    if (!delta()) std::fill_n(result, unit_.count, 0.0f);
    each_rest([&](std::int64_t first, const float* at, std::size_t n) {
      for (std::size_t i = 0; i < n; ++i) result[first + static_cast<std::int64_t>(i)] += at[i];
    });
    for (const Factored& matrix : division_.matrices) {
      kernels::add_low_rank(matrix.shape, {left(matrix), right(matrix), 1.0f},
                            result + matrix.first);
    }
    if (delta()) give_agreed(agreed_.now(), memory_.now());
    for (const Factored& matrix : division_.matrices) prepare_next(matrix);
  }

  // A zero vector would stay zero, and a vector that is not finite would stay so. Both are
  // reinitialized, and values that are not finite are dropped.
  void prepare_next(const Factored& matrix) {
    const std::int64_t columns = matrix.shape.columns;
    for (int k = 0; k < matrix.shape.rank; ++k) {
      const float* const vector = right(matrix) + k * columns;
      const double squares = dot(vector, vector, columns);
      if (squares > 0 && std::isfinite(squares)) continue;
      start_over(matrix, k);
      if (squares == 0) continue;
      const auto numbers = static_cast<std::size_t>(matrix.shape.rows * columns);
      if (!memory_.empty()) std::fill_n(memory_.now().begin() + matrix.first, numbers, 0.0f);
      if (delta()) std::fill_n(agreed_.now().begin() + matrix.first, numbers, 0.0f);
    }
  }

  const Division division_;
  std::vector<float> left_;  // the P of all matrices, then the uncompressed values
  Remembered right_;         // the Q of all matrices, kept for the next step
  Remembered memory_, agreed_;
};

}  // namespace

std::unique_ptr<Reducer> make_low_rank(const Spec& spec, const Unit& unit) {
  Division division = divide(spec, unit);
  if (division.matrices.empty()) return nullptr;
  return std::make_unique<LowRankReducer>(spec, unit, std::move(division));
}

}  // namespace weft::compress::internal

// The losses as types, so that the solvers' inner loops are compiled for each.
//
// z is a prediction x·w, y the target, a the dual variable of a row:
//   value        φ(z)
//   derivative   φ'(z)
//   conjugate    φ*(-a)
//   step         the a that maximizes the row's part of the dual, -φ*(-a) - q/2 (a - a₀)² - z a,
//                where z belongs to a₀ and q = σ' |x|² / (l2 n)
//   kCurvature   the most that φ'' is
// A classifier's a is y b, with b in the loss's interval.
#pragma once

#include <algorithm>
#include <cmath>

#include "weft/linear/solve/objective.h"

namespace weft::linear {

struct Squared {
  static constexpr double kCurvature = 1;
  static double value(double z, double y) { return (z - y) * (z - y) / 2; }
  static double derivative(double z, double y) { return z - y; }
  static double conjugate(double a, double y) { return a * (a / 2 - y); }
  static double step(double z, double a, double y, double q) { return a + (y - z - a) / (1 + q); }
};

// b in [0, 1].
struct Hinge {
  static constexpr double kCurvature = INFINITY;
  static double value(double z, double y) { return std::max(0.0, 1 - y * z); }
  static double derivative(double z, double y) { return y * z < 1 ? -y : 0; }
  static double conjugate(double a, double y) { return -y * a; }
  static double step(double z, double a, double y, double q) {
    const double b = y * a + (1 - y * z) / q;  // q is 0 for an empty row: b is then infinite
    return y * std::clamp(b, 0.0, 1.0);
  }
};

// b >= 0.
struct SquaredHinge {
  static constexpr double kCurvature = 2;
  static double value(double z, double y) {
    const double m = std::max(0.0, 1 - y * z);
    return m * m;
  }
  static double derivative(double z, double y) { return -2 * y * std::max(0.0, 1 - y * z); }
  static double conjugate(double a, double y) { return a * (a / 4 - y); }
  static double step(double z, double a, double y, double q) {
    const double b = y * a;
    return y * std::max(0.0, b + (1 - y * z - b / 2) / (q + 0.5));
  }
};

// b in [0, 1].
struct Logistic {
  static constexpr double kCurvature = 0.25;
  static double value(double z, double y) {
    const double m = y * z;
    return m > 0 ? std::log1p(std::exp(-m)) : std::log1p(std::exp(m)) - m;
  }
  static double sigmoid(double t) { return 1 / (1 + std::exp(-t)); }
  static double derivative(double z, double y) { return -y * sigmoid(-y * z); }
  static double conjugate(double a, double y) { return entropy(y * a) + entropy(1 - y * a); }
  static double entropy(double b) { return b > 0 ? b * std::log(b) : 0; }
  // With b = sigmoid(t), the maximum is the root of F(t) = t + m + q (sigmoid(t) - b₀), m = y z.
  // F grows with a slope of 1 to 1 + q/4, and t = -m is a good start: Newton's method takes one
  // or two steps. The root lies in [-m - q (1 - b₀), -m + q b₀], which also bounds the steps.
  static double step(double z, double a, double y, double q) {
    constexpr int kMaxSteps = 40;
    constexpr double kSmall = 0.1;  // then the step's own error is below 1 % of it
    const double m = y * z, b = y * a;
    double low = -m - q * (1 - b), high = -m + q * b, t = -m;
    for (int i = 0; i < kMaxSteps; ++i) {
      const double s = sigmoid(t), f = t + m + q * (s - b);
      (f > 0 ? high : low) = t;
      double next = t - f / (1 + q * s * (1 - s));
      if (next == t) break;
      if (!(next > low && next < high)) next = (low + high) / 2;
      const double moved = std::abs(next - t);
      t = next;
      if (q * moved <= kSmall) break;
    }
    return y * sigmoid(t);
  }
};

// Calls f with a value of the loss's type.
template <class F>
decltype(auto) with_loss(Loss loss, F&& f) {
  switch (loss) {
    case Loss::kLogistic: return f(Logistic());
    case Loss::kHinge: return f(Hinge());
    case Loss::kSquaredHinge: return f(SquaredHinge());
    case Loss::kSquared: break;
  }
  return f(Squared());
}

}  // namespace weft::linear

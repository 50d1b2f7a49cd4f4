// Gradient noise scale: the batch size above which larger batches save few steps (McCandlish,
// Kaplan, Amodei: An empirical model of large-batch training, 2018, arXiv:1812.06162,
// appendix A.1).
//
// With the mean square norm of gradients over b samples, small, and the square norm of the gradient
// over B samples, large:
//   |G|^2 = (B large - b small) / (B - b)         estimate of the square norm of the true gradient
//   S     = (small - large) / (1 / b - 1 / B)     estimate of the trace of the samples' covariance
//   noise = mean(S) / mean(|G|^2)                 moving averages over the steps
//
// Both estimates are unbiased, but noisy: their ratio is of use after some tens of steps.
#pragma once

#include <cstdint>
#include <optional>

namespace weft::optim {

class NoiseScale {
 public:
  struct Step {
    double small_squares = 0, large_squares = 0;
    double small_batch = 0, large_batch = 0;  // samples
  };
  // Averages, for a checkpoint.
  struct State {
    double noise = 0, signal = 0;  // Means of S and |G|^2. Both begin at 0, so the ratio is right.
  };

  // `memory`: share of the averages that a step keeps, below 1.
  explicit NoiseScale(double memory = 0.95) : memory_(memory) {}
  // Ignores steps with numbers that are not finite, and those where both batches are equal.
  void add(const Step& step);
  // In samples. nullopt before the first step, and while the estimate of |G|^2 is not above 0.
  std::optional<double> value() const;

  const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  double memory_;
  State state_;
};

}  // namespace weft::optim

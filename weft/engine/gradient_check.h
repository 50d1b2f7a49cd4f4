// Looks at each gradient of this rank before it leaves for the other ranks: whether it is finite,
// and on request its checksum. Costs a pass over the gradient, which backward has just written.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace weft::engine {

class GradientCheck {
 public:
  // Numbers above this count as not finite: their sum over many ranks could overflow.
  static constexpr float kLargest = 0x1p100f;

  // Sets the parameters; an engine does this. `look()` counts them from 0.
  void watch(std::vector<std::string> names, std::vector<at::Tensor> parameters);

  // Returns false if a number of the gradient is not finite. Of a gradient on a device only first()
  // tells it, so that no gradient waits for the device.
  bool look(int param, const at::Tensor& gradient);
  // Index and name of the first parameter since clear() whose gradient was not finite; -1 and an
  // empty name: none.
  int first();
  std::string first_name() { return first() < 0 ? "" : names_[index_of(first_)]; }

  // From now on, look() also adds up squares, by parameter since clear(). Costs another pass.
  void measure() { measures_ = true; }
  const std::vector<double>& squares() const { return squares_; }

  // From now on, look() also takes checksums (CRC32C).
  void record(bool on) { records_ = on; }
  // By parameter: of the gradients that look() has seen since clear(). 0: none.
  const std::vector<std::uint32_t>& seen() const { return seen_; }
  // By parameter: of the gradients that the parameters have now. 0: none.
  std::vector<std::uint32_t> kept() const;

  const std::vector<std::string>& names() const { return names_; }
  void clear();

 private:
  static std::size_t index_of(int param) { return static_cast<std::size_t>(param); }

  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  bool records_ = false, measures_ = false;
  int first_ = -1;
  // Gradients on a device: parameters, and whether each is finite (bool, on the device).
  std::vector<int> unread_;
  std::vector<at::Tensor> unread_finite_;
  std::vector<std::uint32_t> seen_;
  std::vector<double> squares_;
};

}  // namespace weft::engine

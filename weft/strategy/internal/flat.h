// Tensors as one flat vector, in which the rules are written as equations.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace weft::strategy::internal {

class Flat {
 public:
  // float64 if one of the tensors is float64, else float32.
  explicit Flat(std::vector<at::Tensor> tensors);

  std::int64_t count() const { return count_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  // A new vector [count] with the tensors' values.
  at::Tensor read() const;
  // A new vector of zeros.
  at::Tensor zeros() const;
  // Writes the tensors.
  void write(const at::Tensor& flat) const;
  // Parts of a vector as tensors of the shapes of this one's.
  std::vector<at::Tensor> views(const at::Tensor& flat) const;

 private:
  std::vector<at::Tensor> tensors_;
  std::int64_t count_ = 0;
  at::ScalarType type_ = at::kFloat;
};

}  // namespace weft::strategy::internal

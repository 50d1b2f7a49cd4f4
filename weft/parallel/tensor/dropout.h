// Dropout whose mask is the same, element by element, however the tensor is split over ranks (the random numbers are described in
// context.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>

#include "weft/parallel/tensor/collectives.h"
#include "weft/parallel/tensor/context.h"

namespace weft::parallel {

// x · mask / (1 - p), each element kept with probability 1 - p. Where x is this rank's even part along `split_dim`, the mask is that part
// of the whole tensor's. Every rank calls it in the same order. 6 ns an element of one processor; the mask is made on the CPU and goes to
// x's device. Throws Error(kInvalidArgument) for p outside [0, 1).
at::Tensor dropout(const at::Tensor& x, double p, std::optional<std::int64_t> split_dim, const TensorParallel& tp);

struct DropoutOptions {
  double p = 0.5;
  Sequence sequence = Sequence::kWhole;  // kSplit: along the dimension before the last
};

// In evaluation mode, and for p = 0, what goes in comes out. Masks are torch::nn::Dropout's in distribution, not in bits.
class DropoutImpl : public torch::nn::Cloneable<DropoutImpl> {
 public:
  DropoutImpl(DropoutOptions options_, TensorParallel tp);
  void reset() override;
  at::Tensor forward(const at::Tensor& x);

  DropoutOptions options;

 private:
  TensorParallel tp_;
};
TORCH_MODULE(Dropout);

}  // namespace weft::parallel

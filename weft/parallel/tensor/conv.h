// A convolution whose channels are split over ranks: column (output channels) or row (input channels), as Linear (linear.h) with channels
// in the place of features. Bytes: column: backward an all-reduce of x; row: forward an all-reduce of y.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <map>
#include <string>

#include "weft/parallel/tensor/linear.h"

namespace weft::parallel {

struct Conv2dOptions {
  std::int64_t in = 1, out = 1;  // channels of the whole layer
  std::int64_t kernel = 3;
  Split split = Split::kNone;
  std::int64_t stride = 1, padding = 0, dilation = 1;
  bool bias = true;
  bool gather_output = false;     // column: every rank ends with all channels
  bool input_is_parallel = true;  // row: the input has this rank's channels only, else all
};

// Parameters weight [out, in, kernel, kernel] and bias [out] as in torch::nn::Conv2d (groups = 1), sliced; libtorch's own initial values.
class Conv2dImpl : public torch::nn::Cloneable<Conv2dImpl>, public SplitModule {
 public:
  // Throws Error(kInvalidArgument) where the split channels do not divide, naming the nearest that do.
  Conv2dImpl(Conv2dOptions options_, TensorParallel tp);
  void reset() override;
  // [n, in, height, width] -> [n, out, …], or parts of the channels as the options say. Collective, backward too.
  at::Tensor forward(const at::Tensor& x);
  std::map<std::string, Slice> slices() const override;

  Conv2dOptions options;
  at::Tensor weight, bias;  // bias: undefined where there is none

 private:
  TensorParallel tp_;
};
TORCH_MODULE(Conv2d);

}  // namespace weft::parallel

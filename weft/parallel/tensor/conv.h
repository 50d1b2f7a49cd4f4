// Conv2d: a convolution whose channels are split over ranks. column splits output channels and row
// splits input channels, as Linear (linear.h) does with features.
// Traffic: column, an all-reduce of x in backward; row, an all-reduce of y in forward.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <map>
#include <string>

#include "weft/parallel/tensor/linear.h"

namespace weft::parallel {

struct Conv2dOptions {
  std::int64_t in = 1, out = 1;  // Channels of the whole layer.
  std::int64_t kernel = 3;
  Split split = Split::kNone;
  std::int64_t stride = 1, padding = 0, dilation = 1;
  bool bias = true;
  // Column: gather all channels on every rank.
  bool gather_output = false;
  // Row: the input has this rank's channels only. False: it has all channels.
  bool input_is_parallel = true;
};

// Parameters: weight [out, in, kernel, kernel] and bias [out] as in torch::nn::Conv2d (groups = 1),
// sliced. Initial values are libtorch's own.
class Conv2dImpl : public torch::nn::Cloneable<Conv2dImpl>, public SplitModule {
 public:
  // Throws Error(kInvalidArgument) if the split channels do not divide, naming the nearest that do.
  Conv2dImpl(Conv2dOptions options_, TensorParallel tp);
  void reset() override;
  // [n, in, height, width] -> [n, out, …], or parts of the channels as the options say. Collective,
  // also in backward.
  at::Tensor forward(const at::Tensor& x);
  std::map<std::string, Slice> slices() const override;

  Conv2dOptions options;
  at::Tensor weight, bias;  // bias: undefined without bias.

 private:
  TensorParallel tp_;
};
TORCH_MODULE(Conv2d);

}  // namespace weft::parallel

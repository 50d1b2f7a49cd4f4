// LayerNorm and RMSNorm between split layers. Their parameters are whole on every rank. Where
// activations are split along the sequence, backward all-reduces the parameters' gradients: 2 ·
// features numbers, or features without a bias. Otherwise nothing is communicated.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "weft/parallel/tensor/collectives.h"
#include "weft/parallel/tensor/context.h"

namespace weft::parallel {

struct NormOptions {
  std::int64_t features = 1;
  double eps = 1e-5;
  bool bias = true;  // Bias of LayerNorm. RMSNorm has none.
  Sequence sequence = Sequence::kWhole;
};

// (x - mean) / sqrt(var + eps) · weight + bias over the last dimension, as torch::nn::LayerNorm
// (Ba, Kiros, Hinton 2016).
class LayerNormImpl : public torch::nn::Cloneable<LayerNormImpl> {
 public:
  LayerNormImpl(NormOptions options_, TensorParallel tp);
  void reset() override;
  // x: any shape [..., features]. Backward is collective where the sequence is split.
  at::Tensor forward(const at::Tensor& x);

  NormOptions options;
  at::Tensor weight, bias;  // [features]. bias: undefined without bias.

 private:
  TensorParallel tp_;
};
TORCH_MODULE(LayerNorm);

// x / sqrt(mean of x² + eps) · weight (Zhang, Sennrich, "Root Mean Square Layer Normalization",
// 2019), as torch's nn.RMSNorm.
class RMSNormImpl : public torch::nn::Cloneable<RMSNormImpl> {
 public:
  RMSNormImpl(NormOptions options_, TensorParallel tp);
  void reset() override;
  at::Tensor forward(const at::Tensor& x);

  NormOptions options;
  at::Tensor weight;

 private:
  TensorParallel tp_;
};
TORCH_MODULE(RMSNorm);

}  // namespace weft::parallel

// Linear: a linear layer whose weight is split over ranks (Shoeybi et al. 2019, 3). y = x W^T + b,
// with W [out, in] as in libtorch.
//
//   column: each rank has rows of W, a part of the    row: each rank has columns of W, a part of
//   outputs                                           the inputs
//
//     x ──f── x W1^T + b1 ── y1                         x1 W1^T ─┐
//      └──f── x W2^T + b2 ── y2                         x2 W2^T ─┴─g── + b
//
// A column layer and then a row layer, with any elementwise function between, take one all-reduce
// in forward and one in backward.
//
// Traffic of a rank in a step, where x and y are the whole activations:
//
//   layer    sequence   forward                    backward
//   column   whole      -                          all-reduce of x
//   column   split      all-gather, part of x      reduce-scatter of x
//   row      whole      all-reduce of y            -
//   row      split      reduce-scatter of y        all-gather, part of y; all-reduce of b
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <map>
#include <string>

#include "weft/parallel/tensor/collectives.h"
#include "weft/parallel/tensor/context.h"

namespace weft::parallel {

enum class Split {
  kNone,    // The whole weight on every rank.
  kColumn,  // Outputs are split.
  kRow,     // Inputs are split.
};

struct LinearOptions {
  std::int64_t in = 1, out = 1;  // Sizes of the whole layer.
  Split split = Split::kNone;
  bool bias = true;
  // Column: gather all outputs on every rank. False: each rank keeps its part.
  bool gather_output = false;
  // Row: the input is this rank's part. False: the input is whole and is split here.
  bool input_is_parallel = true;
  // Layout of x (column) or y (row), as in collectives.h. The sequence is the dimension before the
  // features.
  Sequence sequence = Sequence::kWhole;
  // Column: pad outputs that do not divide with rows of zeros (Slice). False: reject them. The
  // ranks' parts have one size either way.
  bool pad = false;
  // Row: number of pieces of the sequence in which the product and its collective run, one piece on
  // its way while the next is multiplied. The result and the bytes are the same, in as many times
  // the calls. Gradients of gradients are not supported. 1: no overlap.
  int chunks = 1;
  // Initial values. 0: libtorch's own. Above 0: N(0, normal²), and a bias of zeros.
  double normal = 0;
};

// Parameters: weight [out, in] and bias [out] as in torch::nn::Linear, sliced. The bias of a row
// layer is whole on every rank.
class LinearImpl : public torch::nn::Cloneable<LinearImpl>, public SplitModule {
 public:
  // Throws Error(kInvalidArgument) if the split dimension does not divide, naming the nearest that
  // does.
  LinearImpl(LinearOptions options_, TensorParallel tp);
  void reset() override;
  // [..., in] -> [..., out], or parts as the options say. Collective, also in backward.
  at::Tensor forward(const at::Tensor& x);
  // Returns x W^T + b with this rank's weight, without communication. Call it between enter_split()
  // and leave_split(), which several layers may share.
  at::Tensor multiply(const at::Tensor& x) const;
  std::map<std::string, Slice> slices() const override;

  LinearOptions options;
  at::Tensor weight, bias;  // bias: undefined without bias.

 private:
  TensorParallel tp_;
};
TORCH_MODULE(Linear);

// Returns x in the type in which products are computed: under autocast a copy in the narrower type,
// otherwise x. For an input of several products: they share the copy, and its gradients are added
// in that type.
at::Tensor in_product_type(const at::Tensor& x);

}  // namespace weft::parallel

// A linear layer whose weight is split over ranks (Shoeybi et al. 2019, 3). y = x W^T + b, W [out, in] as in libtorch:
//
//   column: W's rows, so each rank has a part of the outputs        row: W's columns, so each rank has a part of the inputs
//
//     x ──f── x W1^T + b1 ── y1          column then row, with anything elementwise between,        x1 W1^T ─┐
//      └──f── x W2^T + b2 ── y2          takes one all-reduce forward and one backward              x2 W2^T ─┴─g── + b
//
// Bytes that a rank hands over in a step, x or y being the whole activation: column: backward an all-reduce of x (sequence split: forward
// an all-gather of a part of x, backward a reduce-scatter of x). Row: forward an all-reduce of y (split: reduce-scatter of y, backward an
// all-gather of a part of y, an all-reduce of b).
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
  kNone,    // the whole weight on every rank
  kColumn,  // outputs
  kRow,     // inputs
};

struct LinearOptions {
  std::int64_t in = 1, out = 1;  // of the whole layer
  Split split = Split::kNone;
  bool bias = true;
  bool gather_output = false;     // column: every rank ends with all outputs, else with its part
  bool input_is_parallel = true;  // row: the input is this rank's part, else whole and split here
  // Column: x lies so; row: y does (collectives.h). The dimension before the features is the sequence.
  Sequence sequence = Sequence::kWhole;
  // Column: outputs that do not divide are padded with rows of zeros (Slice), else refused. The ranks' parts are of one size either way.
  bool pad = false;
  // Row: the product and its collective go in this many pieces of the sequence, one on its way while the next is multiplied. The same
  // result, the same bytes in as many times the calls; no gradients of gradients. 1: one after the other.
  int chunks = 1;
  double normal = 0;  // initial values: libtorch's own, or N(0, normal²) and a bias of zeros where that is above 0
};

// Parameters weight and bias as in torch::nn::Linear: [out, in] and [out], sliced. Row's bias is whole on every rank.
class LinearImpl : public torch::nn::Cloneable<LinearImpl>, public SplitModule {
 public:
  // Throws Error(kInvalidArgument) where the split dimension does not divide, naming the nearest that does.
  LinearImpl(LinearOptions options_, TensorParallel tp);
  void reset() override;
  // [..., in] -> [..., out], or parts as the options say. Collective, backward too.
  at::Tensor forward(const at::Tensor& x);
  // x W^T + b with the weight that is here, without any collective: between enter_split() and leave_split(), which several layers may
  // share.
  at::Tensor multiply(const at::Tensor& x) const;
  std::map<std::string, Slice> slices() const override;

  LinearOptions options;
  at::Tensor weight, bias;  // bias: undefined where there is none

 private:
  TensorParallel tp_;
};
TORCH_MODULE(Linear);

}  // namespace weft::parallel

// Times of operators on a device: a roofline with the shapes of matrix products.
//
// A product of m x k by k x n is cut into tiles. All units of the device compute tiles at once, in
// waves; the last wave may be partly empty (tile and wave quantization, NVIDIA: Matrix
// multiplication background, 2020). The best of several tile sizes counts. A product also takes at
// least the time of its memory traffic. Sizes that are no multiple of 8 elements run on slower
// kernels. Elementwise kernels take the time of their traffic. Every kernel costs a launch.
#pragma once

#include <string>

#include "weft/plan/cluster/cluster.h"
#include "weft/plan/cost/calibrated.h"
#include "weft/plan/model/blocks.h"

namespace weft::plan {

struct OperatorTime {
  double forward = 0, backward_input = 0, backward_weight = 0;
  OperatorTime& operator+=(const OperatorTime& other) {
    forward += other.forward;
    backward_input += other.backward_input;
    backward_weight += other.backward_weight;
    return *this;
  }
};

// Sizes of a batch of matrix products.
struct Product {
  double m = 1, n = 1, k = 1, batch = 1;
};

class DeviceModel {
 public:
  // All arguments must outlive the model.
  DeviceModel(const Accelerator& accelerator, Precision precision, const Software& software,
              const Calibration& constants);

  OperatorTime time(const Operator& op) const;
  // A product of activations and weights, or (`batched`) of activations.
  double product(const Product& p, Precision precision, bool batched) const;
  double memory(double bytes, int kernels) const;
  const Accelerator& accelerator() const { return accelerator_; }
  // FLOP/s of a large product at the precision of the model.
  double rate(Precision precision) const;

 private:
  OperatorTime tuned(const Operator& op) const;
  OperatorTime product_time(const Operator& op) const;
  OperatorTime convolution_time(const Operator& op) const;
  OperatorTime attention_time(const Operator& op) const;
  double narrow_rate() const;
  double tiled(const Product& p, double rate) const;
  double measured(const Product& p) const;

  const Accelerator& accelerator_;
  Precision precision_;
  const Software& software_;
  Fitted fitted_;
  double bandwidth_;  // Bytes/s that kernels reach.
  double launch_;     // Seconds of each kernel.
};

// Times of all operators of a block: in sum, and of those that selective recomputation repeats.
struct BlockTime {
  OperatorTime all;
  double again = 0;
};
BlockTime time_of(const ModelBlock& block, const DeviceModel& device);

}  // namespace weft::plan

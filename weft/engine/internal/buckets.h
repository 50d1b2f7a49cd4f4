// Buckets of gradients in transfer. In each bucket, the gradients of one element type form one flat
// tensor, which is summed over the ranks as it is or, for float32, through a codec.
//
// If parameters of any rank are on a device, flat tensors are where this rank's parameters are, and
// the marks travel beside them through host memory. So no rank waits for its device. A rank alone
// does not copy its gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "weft/comm/group.h"
#include "weft/engine/codec/codec_exchange.h"
#include "weft/engine/data_parallel.h"
#include "weft/engine/gradient_check.h"

namespace weft::engine::internal {

class Buckets {
 public:
  struct Context {
    Group group;
    std::vector<at::Tensor> params;
    DataParallelBase::Times* times;  // the time of waiting and of encoding is added
    GradientCheck* check;            // a gradient that is not finite is sent as zeros; null: none
    bool devices = false;            // parameters of any rank are on a device
  };
  explicit Buckets(Context context);
  // Sets the parameters of each bucket. No transfer may be pending.
  void reset(const std::vector<std::vector<int>>& buckets);
  // Sets the codec and clears its memory. No transfer may be pending. The codec applies `momentum`
  // if the spec says so.
  void use_codec(const compress::Spec& spec, const compress::Momentum& momentum = {});
  // True if collect() takes part in collectives, so that all ranks must call it at the same point.
  bool collects_by_collectives() const;

  // Sends the gradients of a bucket, times `weight`.
  void launch(int bucket, std::int64_t step, double weight);
  // Waits for the sums of a bucket. Collect buckets in the order in which they were launched. A
  // second call has no effect.
  void collect(int bucket);
  // Visits the sums of the parameters that have a gradient on any rank: visit(parameter, tensor of
  // its shape in the bucket's memory).
  void each_sum(int bucket, const std::function<void(int, const at::Tensor&)>& visit) const;

  // The sums so far count, for the codec's memory, or those since the last commit() do not
  // (Reducer). No transfer may be pending.
  void commit();
  void rollback();
  // False if the codec has rounded a number of the last sums to infinity, on this rank.
  bool is_in_range() const;

  // The codec's memory on this rank.
  std::vector<std::span<float>> memory();
  // Number of float32 values that the group sums in a step, and the units of them that this rank
  // would encode and send.
  std::int64_t numbers() const;
  std::vector<compress::Unit> units() const;
  // Bytes sent, as a fraction of the bytes without a codec. The same on all ranks. Collective.
  double share_sent() const;

 private:
  struct Flat {
    at::ScalarType type;
    at::Tensor wire;  // gradients, then a mark for each parameter: on how many ranks it has one
    at::Tensor gradients, marks;                       // the parts of `wire`; apart with devices
    std::vector<std::pair<int, std::int64_t>> places;  // parameter, first element
    std::uint32_t id;                                  // among all flat tensors
    // Sums `wire` as it is, or `gradients`.
    std::unique_ptr<CodecExchange> exchange;
    // Sums `marks`, with a codec or devices.
    std::unique_ptr<CodecExchange> marks_exchange;
  };

  void add(const std::vector<int>& bucket);
  void fill(Flat& flat, double weight) const;
  void check_alone(int bucket) const;
  compress::Unit unit_of(const Flat& flat) const;
  bool advance(CodecExchange& exchange);
  void advance_all();
  template <class Visit>
  void each_exchange(const Visit& visit) const;

  const Group group_;
  const std::vector<at::Tensor> params_;
  DataParallelBase::Times* const times_;
  GradientCheck* const check_;
  const bool devices_;
  const bool alone_;                      // gradients stay where they are
  std::vector<std::vector<Flat>> flats_;  // by bucket
  std::vector<bool> under_way_;           // by bucket
  bool several_rounds_ = false;           // of some exchange
  bool advanced_ = false;                 // all rounds of this step are done
};

}  // namespace weft::engine::internal

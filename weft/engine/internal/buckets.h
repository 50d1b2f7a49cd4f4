// Buckets of gradients on their way: in each, those of one element type lie side by side in one
// flat tensor, which is summed over the ranks as it is or, float32, through a codec.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "weft/comm/group.h"
#include "weft/engine/codec_exchange.h"
#include "weft/engine/data_parallel.h"

namespace weft::parallel::internal {

class Buckets {
 public:
  // Waiting and coding are counted in `times`.
  Buckets(Group group, std::vector<at::Tensor> params, DataParallelBase::Times* times);
  // Nothing is under way: the parameters of each bucket from now on.
  void reset(const std::vector<std::vector<int>>& buckets);
  // Nothing is under way: forgets what a codec remembered. `momentum` is taken by the codec, if the
  // spec says so.
  void use_codec(const compress::Spec& spec, const compress::Momentum& momentum = {});
  // collect() takes part in collectives, so that it has to be called at the same place on all
  // ranks.
  bool collects_by_collectives() const;

  // The gradients, times `weight`, leave.
  void launch(int bucket, std::int64_t step, double weight);
  // Waits for the sums of a bucket. Buckets are collected in the order in which they were launched;
  // twice does no harm.
  void collect(int bucket);
  // Those sums, of the parameters that have a gradient on some rank: visit(parameter, tensor of its
  // shape in the bucket's memory).
  void each_sum(int bucket, const std::function<void(int, const at::Tensor&)>& visit) const;

  // What the codec remembers on this rank.
  std::vector<std::span<float>> memory();
  // All float32 numbers that the group sums up in a step, and what this rank would send of them
  // encoded.
  std::int64_t numbers() const;
  std::vector<compress::Unit> units() const;
  // Of the bytes that would be sent without a codec; the same on all ranks. Collective.
  double share_sent() const;

 private:
  struct Flat {
    at::ScalarType type;
    at::Tensor wire;  // gradients, then a mark for each parameter: on how many ranks it has one
    at::Tensor gradients, marks;                       // the parts of `wire`
    std::vector<std::pair<int, std::int64_t>> places;  // parameter, first element
    std::uint32_t id;                                  // among all flat tensors
    // Of `wire` as it is, or of `gradients` through a codec.
    std::unique_ptr<CodecExchange> exchange;
    std::unique_ptr<CodecExchange> marks_exchange;  // and of `marks`
  };

  void add(const std::vector<int>& bucket);
  void fill(Flat& flat, double weight) const;
  compress::Unit unit_of(const Flat& flat) const;
  bool advance(CodecExchange& exchange);
  void advance_all();
  template <class Visit>
  void each_exchange(const Visit& visit) const;

  const Group group_;
  const std::vector<at::Tensor> params_;
  DataParallelBase::Times* const times_;
  std::vector<std::vector<Flat>> flats_;  // by bucket
  std::vector<bool> under_way_;           // by bucket
  bool several_rounds_ = false;           // of some exchange
  bool advanced_ = false;                 // all rounds of this step are done
};

}  // namespace weft::parallel::internal

// How gradients of replicated parameters (stage 0) are combined over the ranks: read in place on
// one host, or by messages.
//
// The hooks of the parameters report that a gradient is ready. finish() ends the step. reduce()
// runs before it if the sums or their norm are needed before weights are updated. replica.h shows
// the calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "weft/comm/group.h"
#include "weft/engine/codec_state.h"
#include "weft/engine/data_parallel.h"
#include "weft/engine/gradient_check.h"
#include "weft/engine/internal/company.h"
#include "weft/engine/internal/crossing.h"
#include "weft/engine/internal/module_watch.h"
#include "weft/engine/internal/samples.h"
#include "weft/engine/internal/updates.h"

namespace weft::engine::internal {

class Transport {
 public:
  virtual ~Transport() = default;
  // The gradient of `param` is in its grad(). Called once per step and parameter, from backward().
  virtual void ready(int param) = 0;
  // Combines the remaining gradients before finish(), only with an updater. After it, each_sum()
  // and norm() are available.
  virtual void reduce() = 0;
  // No more gradients will become ready: combines the rest, including the grad() of parameters that
  // did not become ready. Returns when this rank's grad() hold the result. With an updater: returns
  // when all weights are updated by `scale` times the sums, or while pending().
  virtual void finish(double scale) = 0;
  // Replaces finish() after reduce(): no weight is updated. The samples stay.
  virtual void drop() = 0;
  // Replaces finish() without reduce(), with an updater: the program has dropped the gradients, on
  // all ranks. Throws Error(kInvalidArgument) if this rank sees that another one has not.
  virtual void discard() {
    reduce();
    drop();
  }
  // False if gradients that were ready count even if they are dropped.
  virtual bool can_discard() const { return true; }
  // Without an updater, before the next backward(): the program has stepped by the averages that
  // finish() has made since the last such call, or it has dropped them on all ranks.
  virtual void averages_used() {}
  virtual void averages_dropped() {}
  // Replaces finish() after reduce(): the caller has updated the weights by `scale` times the sums.
  virtual void finish_updated(double scale) = 0;
  // With overlap_forward, finish() may return before all weights are updated. True until they are.
  virtual bool pending() const { return false; }
  // Waits until all weights are updated. Throws errors that occurred meanwhile.
  virtual void settle() {}
  // Throws Error(kInvalidArgument) if the program has written to weights that exist once for all
  // ranks, since the last update. Not collective.
  virtual void check_written() {}
  // From now on the present values of such weights are right. Called on all ranks, which then meet.
  virtual void note_written() {}
  // The parameters that had a gradient on any rank in the last step, or since reduce().
  virtual const std::vector<bool>& used() const = 0;
  // The sums of these gradients, in place. After reduce(), before finish(). `visit` may not wait.
  // They are valid after it, until finish(), only with owns_sums(): others are in the memory of a
  // peer, which may end its step by an error.
  virtual bool owns_sums() const { return true; }
  virtual void each_sum(const std::function<void(int param, const at::Tensor& sum)>& visit) = 0;
  // False if the ranks have changed their modules differently before this step's gradients were
  // known (ModuleWatch::digest()). Valid after reduce(), await_peers() or finish().
  bool alike() const { return alike_; }
  // Two ranks whose backward passes have reached this model with other ones (company.h). Valid
  // then too.
  const std::optional<std::pair<int, int>>& apart() const { return apart_; }
  // Waits until all ranks have published their gradients. For ranks that share weights.
  virtual void await_peers();
  // True if no gradient that this rank knows is not finite: its own, or those of all ranks
  // (knows_all()). For the ranks together, before reduce() or finish().
  virtual bool all_finite() = 0;
  virtual bool knows_all() const = 0;
  // Norm of the sums.
  virtual double norm();
  // The sum of a used parameter by which its weights were updated. Collective; valid until
  // gradients are dropped.
  virtual at::Tensor sum_of(int param) = 0;
  virtual std::string describe() const = 0;
  // Saves and loads the codec's memory (codec_state.h), between steps. Loading is collective.
  // Returns false if the codec starts with empty memory.
  virtual checkpoint::Slices codec_slices() { return {}; }
  virtual bool load_codec(const checkpoint::Reader&) { return true; }

 protected:
  bool alike_ = true;
  std::optional<std::pair<int, int>> apart_;
};

// Input of a transport.
struct TransportContext {
  Group group;
  ModelName name;
  std::vector<at::Tensor> params;   // parameters that require gradients
  std::vector<at::Tensor> buffers;  // empty if buffers are not synchronized
  DataParallelOptions options;
  Updates* updates = nullptr;  // null: grad() gets the average
  // For shared memory with an updater: every rank updates its own weights from the sums, instead of
  // a share of common weights.
  bool private_weights = false;
  GradientCheck* check = nullptr;    // null: none
  bool devices = false;              // parameters of any rank are on a device
  SampleCount* samples = nullptr;    // of this rank since the last step
  ModuleWatch* watch = nullptr;      // null: none
  const Company* company = nullptr;  // null: the model is the only one of its group
  DataParallelBase::Times* times = nullptr;

  // Elements of each parameter.
  std::vector<std::int64_t> sizes() const {
    std::vector<std::int64_t> all;
    for (const at::Tensor& param : params) all.push_back(param.numel());
    return all;
  }
  std::uint32_t digest() const {
    if (watch == nullptr) return 0;
    const bool by_samples = options.average == DataParallelOptions::Average::kBySamples;
    return watch->digest({.unknown_samples = by_samples && samples->are_unknown(),
                          .dropped = watch->dropped_batches()});
  }
  std::uint64_t company_value() const { return company != nullptr ? company->value() : 0; }
};

// Needs group.host().
std::unique_ptr<Transport> make_in_place_transport(TransportContext context);
std::unique_ptr<Transport> make_message_transport(TransportContext context);
// Average::kAdasum, on one host too.
std::unique_ptr<Transport> make_adasum_transport(TransportContext context);

// Each rank's factor for its gradient, by the options; one common `scale` if all are equal.
struct Weighting {
  std::vector<double> weights;  // empty: all equal
  double scale = 1;
  double of(int rank) const { return weights.empty() ? scale : weights[index(rank)]; }
};
Weighting weigh(DataParallelOptions::Average average, const std::vector<double>& samples);

// Writes an average to the parameter's grad(), which never gets the memory of `average`.
void put_average(const at::Tensor& param, const at::Tensor& average);

// Collective: returns the order in which rank 0's gradients became ready, followed by the other
// parameters in reverse order. The same on every rank.
std::vector<int> agree_on_order(const Group& group, std::vector<int> ready, int params);

}  // namespace weft::engine::internal

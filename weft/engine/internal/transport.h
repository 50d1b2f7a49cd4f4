// How gradients of replicated parameters (stage 0) are combined over the ranks: read in place on
// one host, or by messages.
//
// The hooks of the parameters tell that a gradient is ready; finish() ends the step, with reduce()
// before it where somebody has to know the sums, or their norm, before weights are updated. See
// replica.h for who calls what.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "weft/comm/group.h"
#include "weft/engine/codec_state.h"
#include "weft/engine/data_parallel.h"
#include "weft/engine/internal/updates.h"

namespace weft::parallel::internal {

class Transport {
 public:
  virtual ~Transport() = default;
  // The gradient of `param` lies in its grad(). Called once a step and parameter, from backward().
  virtual void ready(int param) = 0;
  // Combines what has not been combined, before finish() and with an updater: afterwards each_sum()
  // and norm() can be asked.
  virtual void reduce() = 0;
  // All that will become ready has: combines the rest (what grad() holds of parameters that did not
  // become ready counts), and returns when this rank's grad() hold the result or, with an updater,
  // when all weights are updated by `scale` times the sums, or pending().
  virtual void finish(double scale) = 0;
  // Instead of finish() after reduce(): no weight is updated.
  virtual void drop() = 0;
  // With overlap_forward finish() may return before all weights are updated: true until they are.
  virtual bool pending() const { return false; }
  // Waits for that; throws what went wrong meanwhile.
  virtual void settle() {}
  // Which parameters had a gradient on some rank in the last step, or since reduce().
  virtual const std::vector<bool>& used() const = 0;
  // After reduce(), until finish(): the sums of those, in place.
  virtual void each_sum(const std::function<void(int param, const at::Tensor& sum)>& visit) = 0;
  // Their norm.
  virtual double norm() = 0;
  // Collective, until gradients are dropped: the sum of a parameter that was used, as weights were
  // updated by it.
  virtual at::Tensor sum_of(int param) = 0;
  virtual std::string describe() const = 0;
  // Saves and loads the codec's memory (codec_state.h), between steps. Loading is collective;
  // false: the codec begins without memory.
  virtual checkpoint::Slices codec_slices() { return {}; }
  virtual bool load_codec(const checkpoint::Reader&) { return true; }
};

// What a transport works on.
struct Subject {
  Group group;
  std::vector<at::Tensor> params;   // that require gradients
  std::vector<at::Tensor> buffers;  // empty where they are not synchronized
  DataParallelOptions options;
  Updates* updates = nullptr;  // null: grad() gets the average
  // Shared memory with an updater: every rank updates weights of its own from the sums, instead of
  // a share of common ones.
  bool private_weights = false;
  double* samples = nullptr;  // of this rank since the last step
  DataParallelBase::Times* times = nullptr;
};

// Needs group.host().
std::unique_ptr<Transport> make_in_place_transport(Subject subject);
std::unique_ptr<Transport> make_message_transport(Subject subject);

// Each rank's factor for its gradient, by the options; one common `scale` where all weigh the same.
struct Weighting {
  std::vector<double> weights;  // empty: all the same
  double scale = 1;
  double of(int rank) const { return weights.empty() ? scale : weights[index(rank)]; }
};
Weighting weigh(DataParallelOptions::Average average, const std::vector<double>& samples);

// Collective: the order in which rank 0's gradients became ready, then those that did not,
// backwards; the same on every rank.
std::vector<int> agree_on_order(const Group& group, std::vector<int> ready, int params);

}  // namespace weft::parallel::internal

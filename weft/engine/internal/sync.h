// How gradients of one module are combined over the ranks: in shared memory, or by messages.
//
// The hooks of the parameters tell that a gradient is ready; finish() ends the step. See replica.h for who calls what.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "weft/comm/group.h"
#include "weft/compress/reducer.h"
#include "weft/engine/codec_state.h"
#include "weft/engine/data_parallel.h"

namespace weft::parallel::internal {

// What the weights' owner does with a reduced gradient: [begin, end) of parameter `param`, `gradient` pointing to element begin.
class Updater {
 public:
  virtual ~Updater() = default;
  // Called at most once a step for each element, by any rank, several ranks at once for different elements.
  virtual void update(int param, std::int64_t begin, std::int64_t end, const float* gradient) = 0;
  // From now on gradients come with SGD's momentum in them. Gives that momentum; nothing changes where it is none: another rule, or one
  // that dampens.
  virtual compress::Momentum hand_over_momentum() { return {}; }
};

class Sync {
 public:
  virtual ~Sync() = default;
  // The gradient of `param` lies in its grad(). Called once a step and parameter, from backward().
  virtual void ready(int param) = 0;
  // All that will become ready has: combines the rest (what grad() holds of parameters that did not become ready counts), and returns when
  // this rank's grad() hold the result or, with an updater, when all weights are updated or pending().
  virtual void finish() = 0;
  // With overlap_forward finish() may return before all weights are updated: true until they are.
  virtual bool pending() const { return false; }
  // Waits for that; throws what went wrong meanwhile.
  virtual void settle() {}
  // Which parameters had a gradient on some rank in the step just finished and settled.
  virtual const std::vector<bool>& used() const = 0;
  // The global norm of the gradient of the last step; 0 where none was asked for.
  virtual double norm() const { return 0; }
  virtual std::string describe() const = 0;
  // What a codec remembers (codec_state.h); between steps, collective.
  virtual NamedTensors codec_state() { return {}; }
  virtual void load_codec_state(const NamedTensors& state) { (void)state; }
};

// What a Sync works on.
struct Subject {
  Group group;
  std::vector<at::Tensor> params;   // that require gradients
  std::vector<at::Tensor> buffers;  // empty where they are not synchronised
  DataParallelOptions options;
  Updater* updater = nullptr;  // null: grad() gets the average
  // Shared memory with an updater: every rank reduces everything and updates weights of its own, instead of a share of common ones.
  bool whole = false;
  double max_grad_norm = 0;
  double* samples = nullptr;  // of this rank since the last step
  DataParallelBase::Times* times = nullptr;
};

// Needs group.host(). Float parameters in an updater are float32.
std::unique_ptr<Sync> make_host_sync(Subject subject);
std::unique_ptr<Sync> make_message_sync(Subject subject);

// Each rank's factor for its gradient, by the options; one common `scale` where all weigh the same.
struct Weighting {
  std::vector<double> weights;  // empty: all the same
  double scale = 1;
};
Weighting weigh(DataParallelOptions::Average average, const std::vector<double>& samples);

// Collective: the order in which rank 0's gradients became ready, then those that did not, backwards; the same on every rank.
std::vector<int> agree_on_order(const Group& group, std::vector<int> ready, int params);

}  // namespace weft::parallel::internal

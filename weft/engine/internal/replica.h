// One rank's module under data parallelism: its parameters, the hooks on them, and what happens when a step ends.
//
//   backward() -> hook of each parameter -> Sync::ready      (nothing inside no_sync())
//   without an optimizer(): the end of backward() -> Sync::finish: grad() holds the average
//   with an optimizer():    Optimizer::step()     -> Sync::finish: the weights are updated
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/engine/data_parallel.h"
#include "weft/engine/internal/sync.h"
#include "weft/engine/internal/updater.h"

namespace weft::parallel {

class Replica : public std::enable_shared_from_this<Replica> {
 public:
  Replica(std::shared_ptr<torch::nn::Module> module, Group group, DataParallelOptions options);
  ~Replica();

  // After construction, since hooks hold a weak pointer to it: checks the ranks against each other, broadcasts, installs the hooks.
  void start();
  void use_optimizer(OptimizerSpec spec);

  const Group& group() const { return group_; }
  std::string describe() const { return sync_->describe() + (shared_weights_ ? ", optimiser state once a host" : ""); }
  void add_samples(double samples) { samples_ += samples; }
  void set_samples(double samples) { samples_ = samples; }
  void pause() { ++paused_; }
  void resume() { --paused_; }
  DataParallelBase::Times take_times() { return std::exchange(times_, {}); }

  void step();
  void zero_grad();
  internal::RuleUpdater& updater();
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  // Waits until the weights are those of the last step.
  void settle();
  internal::Sync& sync() { return *sync_; }
  double norm() const { return norm_ > 0 ? norm_ : sync_->norm(); }
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<at::Tensor>& params() const { return params_; }
  // True where this rank writes for its host: one does, where weights are shared.
  bool writes() const { return !shared_weights_ || group_.rank() == 0; }

 private:
  void on_ready(int param);
  void finish();
  void update_alone();
  void check_same() const;
  void broadcast_all();
  void choose_weights(const OptimizerSpec& spec, const internal::Layout& layout, std::vector<float*>& weights);
  internal::Subject subject(internal::Updater* updater, double max_grad_norm);

  std::shared_ptr<torch::nn::Module> module_;
  Group group_;
  DataParallelOptions options_;
  std::vector<at::Tensor> params_, buffers_, frozen_;
  std::vector<std::string> names_;
  std::unique_ptr<internal::RuleUpdater> updater_;
  std::vector<at::Tensor> private_state_;
  std::unique_ptr<internal::Sync> sync_;
  std::vector<bool> ready_;  // since the last finish
  bool any_ready_ = false;
  bool shared_weights_ = false;
  bool whole_ = false;  // private weights, each rank reduces and updates all of them
  int paused_ = 0;
  double samples_ = 0;
  std::int64_t steps_ = 0;
  double norm_ = 0;  // where the ranks update private weights
  DataParallelBase::Times times_;
};

}  // namespace weft::parallel

// Several workers that train together by a strategy (weft/strategy): the rule between their models,
// and the state that it adds to a checkpoint.
//
//   mesh  dp 4 x tp 2   ──>   4 workers, each a mesh of tp 2; the rule works along dp
//
// A checkpoint has
//   model, optimizer, …   the result of the rule, and worker 0's optimizer state: what any plan can
//                         resume from and what weft generate reads; not in copies for recovery
//   workers               "workers.<worker>.<name>": each worker's own state
//   strategy              "strategy.<rule>.<array>.<weight>", "strategy.<rule>.numbers", and
//                         "strategy.<rule>.own.<worker>.<rank>.<n>", memory of a worker's rank,
//                         such as of its codecs; ".layout" in place of <n>: of which part of the
//                         model
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weft/checkpoint/reader.h"
#include "weft/checkpoint/slice.h"
#include "weft/parallel/compose/parallelize.h"
#include "weft/parallel/mesh/mesh.h"
#include "weft/strategy/strategy.h"
#include "weft/train/options.h"

namespace weft::train::internal {

// Throws Error(kBadConfig) for options that do not work with the strategy.
void check_workers(const Options& options, const Mesh& mesh);
// The plan of one worker's model.
parallel::Plan of_worker(parallel::Plan plan, const Options& options, const Mesh& mesh);
// The mesh of this rank's worker: all axes but dp. The whole mesh with the strategy "sync".
Mesh worker_mesh(const Mesh& mesh, const strategy::Strategy& strategy);

class Workers {
 public:
  // `model` is this worker's, on worker_mesh(mesh, …). It must outlive this object. `servers` is
  // Components::servers. Collective. Throws Error(kBadConfig) if it is null and the strategy needs
  // it.
  Workers(const strategy::Strategy& strategy, const Mesh& mesh, parallel::ParallelModel& model,
          const strategy::ServerComponent* servers);

  int worker() const { return mesh_.coordinate("dp"); }
  // What this rank sends, in one line.
  std::string describe() const;
  // After an optimizer step of the worker. Collective.
  void after_step(const strategy::Step& step);
  // Asynchronous strategies: all workers take part from now on, and this one does not from leave()
  // on. `step`: the last one that all workers have done. begin() is collective.
  void begin(std::int64_t step);
  void leave() { rule_->leave(); }
  const strategy::Rule& rule() const { return *rule_; }
  // Calls fn() while the model has the weights and buffers of the result, then puts back the
  // worker's own. Collective.
  void with_result(const std::function<void()>& fn);
  // The model has the result from now on, and no worker trains any more. Collective.
  void take_result();
  // This rank's slices of a checkpoint, or of a copy for recovery (without the result). Valid until
  // the next step. Collective.
  checkpoint::Parts parts(bool with_result);
  // Loads parts() of as many or fewer workers, or a checkpoint without workers. Worker w takes the
  // state of worker w; of fewer workers, or none, the result. Returns false if the rule begins
  // again, since the checkpoint has no state of it. Collective.
  bool restore(const checkpoint::Reader& saved);

 private:
  enum class Use { kSave, kLoad, kLoadWithoutOwn };
  checkpoint::Slices array_slices(Use use);
  void add_result(checkpoint::Parts& parts, const checkpoint::Parts& own);
  bool restore_rule(const checkpoint::Reader& saved);
  std::string own_name(int worker, const std::string& what) const;
  bool has_own_layout(const checkpoint::Reader& saved) const;
  bool takes_own(const checkpoint::Reader& saved) const;

  const strategy::Strategy strategy_;
  const std::string name_;  // "strategy.<rule>."
  const Mesh mesh_;
  parallel::ParallelModel& model_;
  parallel::ParallelModel::Held held_;
  // Whether this rank saves a held weight or buffer: others of its worker may hold the same.
  std::vector<bool> saves_weight_, saves_buffer_;
  int rank_ = 0;       // in the worker's mesh
  at::Tensor layout_;  // int64 [1]: of the held weights
  std::unique_ptr<strategy::Rule> rule_;
};

}  // namespace weft::train::internal

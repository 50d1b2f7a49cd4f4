// One rank's part of a composed model: what the passes make, and what runs afterwards.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/parallel/compose/parallelize.h"
#include "weft/parallel/pipeline/pipeline.h"
#include "weft/parallel/sharded/sharded.h"

namespace weft::parallel::internal {

// How a parameter of this rank lies in the whole model.
struct Parameter {
  std::string own;                  // "<block>.<name>" in the stage
  std::string whole;                // in the whole model: another one where this is a copy that another stage has too
  std::optional<Slice> slice;       // over tp
  std::optional<Slice> expert;      // over ep
  std::vector<std::int64_t> sizes;  // whole
  bool trained = true;

  bool copy() const { return own != whole; }
};

// Blocks that a rank runs one after the other, and who keeps their parameters.
struct Stage {
  int number = 0;
  int first = 0;  // block
  std::vector<ModelBlock> blocks;
  std::vector<std::string> names;
  std::vector<TensorParallel> tp;  // by block
  std::vector<Parameter> parameters;
  bool tied = false;                 // with other stages
  std::unique_ptr<Sharded> sharded;  // null: no parameters
  std::unique_ptr<Sharded::NoSync> kept;

  const Parameter* find(const std::string& own) const;
};

class Composed {
 public:
  Composed(BlockModel model_, Plan plan_, const Mesh& mesh_);

  double run(const Tensors& inputs, const Tensors& targets, bool training);
  Tensors predict(const Tensors& inputs);
  bool step();
  void zero_grad();
  double grad_norm();
  ParallelModel::NamedTensors state();
  void load_state(const ParallelModel::NamedTensors& state);
  ParallelModel::NamedTensors gradients();

  // Of Pipeline's options.
  at::Tensor loss_of(const Tensors& outputs, const Tensors& targets) const;
  void before(const schedule::pipeline::Action& action);
  int replica() const {
    return (mesh.coordinate("dp") * mesh.size("fsdp") + mesh.coordinate("fsdp")) * mesh.size("ep") + mesh.coordinate("ep");
  }
  // Those that have samples of their own.
  const Group& replicas() const { return mesh.along({"dp", "fsdp", "ep"}); }
  // Those that have the same of the weights, of experts'.
  const Group& copies() const { return mesh.along({"dp", "cp", "ep"}); }
  const Group& copies_of_experts() const { return mesh.along({"dp", "cp"}); }
  double scale() const { return scaler ? scaler->scale() : 1; }

  // What passes make, in their order.
  const BlockModel model;
  const Plan plan;
  const Mesh mesh;
  schedule::pipeline::Request request;
  std::vector<int> cuts;
  std::vector<Stage> stages;
  TensorParallel tp;  // of the loss
  ContextParallel cp;
  ExpertParallel ep;
  Precision precision = Precision::kAsItIs;
  std::optional<LossScale> scaler;
  std::unique_ptr<Pipeline> pipeline;
  ShardedOptions sharding;
  double max_norm = 0;
  UpdateRule rule;                                        // whose learning rate is the current one
  std::vector<std::pair<std::string, std::string>> done;  // by each pass
  std::int64_t steps = 0;

 private:
  struct Cut {
    std::vector<Tensors> inputs, targets;
  };
  Contexts contexts() const { return {.tp = tp, .cp = cp, .ep = ep}; }
  double share_of_batch();
  Cut cut(const Tensors& inputs, const Tensors& targets, double factor) const;
  template <class Fn>
  auto guarded(const Fn& fn) -> decltype(fn());
  void abort(const Error& error) const;
  double norm_of_gradients();
  // Of the ranks that have the same parameters, those whose parts make up the whole model.
  bool is_first_copy() const { return mesh.coordinate("dp") == 0 && mesh.coordinate("cp") == 0; }
  bool is_first_of_ep() const { return mesh.coordinate("ep") == 0; }
  TensorParallel along_ep() const { return {mesh["ep"], 0}; }
  void load(Stage& stage, const std::map<std::string, at::Tensor>& state);
  std::string mismatch(const std::map<std::string, at::Tensor>& state) const;
  // One rank's named tensors of each stage, to rank 0 of the world: `of` gives a stage's, by own names, on the shards' rank 0.
  ParallelModel::NamedTensors whole(const std::function<Sharded::NamedTensors(Stage&)>& of);

  double samples_ = 0;  // of the batch that is run
  bool stepped_ = false;
  double norm_ = -1;  // that the last step has found; below 0: none
};

// What is thrown on one rank keeps nobody waiting.
template <class Fn>
auto Composed::guarded(const Fn& fn) -> decltype(fn()) {
  try {
    return fn();
  } catch (const Error& error) {
    abort(error);
    throw;
  } catch (const std::exception& error) {
    abort(Error(Errc::kAborted, "rank " + std::to_string(mesh.world().rank()) + " ended with: " + error.what()));
    throw;
  }
}

// Runs all passes.
void compose(Composed& composed);

}  // namespace weft::parallel::internal

// What parallelize() is asked for beside the mesh's sizes, and whether it can be done at all.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/engine/data_parallel.h"
#include "weft/parallel/compose/loss_scale.h"
#include "weft/parallel/context/context_parallel.h"
#include "weft/plan/mesh.h"
#include "weft/schedule/pipeline/pipeline.h"

namespace weft::parallel {

// kFull: every block but the last, whose backward follows at once, keeps its inputs alone (parallel/recompute). kSelective: blocks keep
// what is dear to compute, and compute again what is large and cheap: attention's scores, norms, activations. BlockModel::selective.
enum class Recompute { kNone, kFull, kSelective };
enum class Precision { kAsItIs, kBf16, kF16 };  // what blocks and loss compute in, by autocast; parameters stay as they are

// torch::optim::SGD without momentum or decay.
OptimizerSpec plain_sgd();

struct Plan {
  OptimizerSpec optimizer = plain_sgd();  // its max_grad_norm counts for the whole model
  bool decay_vectors = true;              // false: parameters of one dimension or none go without weight decay and L1
  std::uint64_t seed = 0;                 // of initial values and dropout
  // Over pp: how a step's micro-batches go through the stages. With one stage they follow each other, and their gradients add up.
  schedule::pipeline::Algorithm schedule = schedule::pipeline::Algorithm::kOneForwardOneBackward;
  int micro_batches = 1;
  // Above 0: the same bits however many replicas, shards and stages there are. A batch is cut into so many parts, a power of two and a
  // multiple of the replicas, of which each replica takes its own one by one (micro_batches follows), and all sums are taken along one tree
  // over them or by integers. For dp, fsdp and pp, on hosts of one kind with one thread each, by a group that has_ordered_sums(); gradients
  // leave after backward.
  int micro_shards = 0;
  int virtual_stages = 0;  // of each rank; 0: as few as the schedule takes
  // The first block of each stage but the first. Empty: by the time that each block takes on `sample`, the inputs of one micro-batch, so
  // that the slowest stage is as fast as can be (plan/stages.h); without a sample, equally many blocks.
  std::vector<int> cuts = {};
  std::vector<at::Tensor> sample = {};
  // Over fsdp: 1 optimiser state, 2 and gradients, 3 and parameters.
  int zero_stage = 3;
  Weights weights = Weights::kAuto;
  // What replicas (over dp, cp and ep) send each other of gradients goes through: compress/spec.h; not with a scaled loss. "auto": only
  // over dp and cp alone. Where replicas hold whole models on several hosts it is data parallelism's (DataParallelOptions::codec).
  std::string codec = "none";
  ContextMethod context = ContextMethod::kRing;  // over cp: how attention sees the whole sequence
  int accumulate = 1;                            // calls of train_step() before each step(): each counts for its part
  Recompute recompute = Recompute::kNone;
  Precision precision = Precision::kAsItIs;
  // With kF16 always, else where given.
  std::optional<LossScaleOptions> loss_scale = std::nullopt;
  std::int64_t batch = 0;  // samples of a step over all replicas; 0: not known, and not checked
  // Without fsdp and ep every replica has all weights of its stages: how these, gradients and buffers are kept. `weights`, `average` and
  // `codec` are the plan's; sync_buffers counts for every plan. float32 and float64 parameters.
  DataParallelOptions data_parallel = {};
  // Batch norms (SyncBatchNorm, and BatchNorm in a Sequential) take statistics over all replicas' batches. Otherwise each replica takes
  // its own, and the running ones are the first replica's.
  bool sync_batch_norm = false;
  std::vector<std::string> without;  // passes that are left out (parallelize.h); one that the mesh needs is refused
};

// Of the model, what a plan is held against.
struct ModelShape {
  int blocks = 1;
  std::vector<std::pair<std::string, std::int64_t>> splits = {};
  std::int64_t heads = 0, kv_heads = 0, experts = 0;  // BlockModel's
};

struct BlockModel;
ModelShape shape_of(const BlockModel& model);

// Axes: dp, fsdp, tp, pp, cp and ep. Throws Error(kBadConfig), one line with the nearest plan for as many ranks that can work, where this
// one cannot: tensor parallelism, heads or experts that do not divide, sequences of a model that does not cut them, more
// stages than blocks, fewer samples than micro-batches of all replicas, numbers out of range, cuts that do not rise
// through the blocks, a codec that cannot be or that nothing would go through. Pure.
void check_plan(const Plan& plan, const ModelShape& model, const plan::MeshLayout& mesh);

bool scales_loss(const Plan& plan);
// Of each replica in a step.
int micro_batches(const Plan& plan, const plan::MeshLayout& mesh);
// Stages of each rank of the pipeline.
int virtual_stages(const Plan& plan);

}  // namespace weft::parallel

// Plan: the options of parallelize() besides the mesh sizes, and a check that a plan can work.
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
#include "weft/plan/mesh/mesh.h"
#include "weft/schedule/pipeline/pipeline.h"

namespace weft::parallel {

using engine::optimizer_spec;
using engine::OptimizerSpec;
using engine::Weights;

// Activation checkpointing. kFull: each block keeps only its inputs (parallel/recompute), except
// the last one, whose backward follows at once. kSelective: blocks keep expensive activations and
// recompute large, cheap ones: attention scores, norms, activation functions
// (BlockModel::selective).
enum class Recompute { kNone, kFull, kSelective };
// Type in which blocks and loss compute, by autocast. Parameters keep their types.
enum class Precision { kAsItIs, kBf16, kF16 };

// torch::optim::SGD without momentum or weight decay.
OptimizerSpec plain_sgd();

struct Plan {
  // Optimizer. Its max_grad_norm applies to the whole model. Without not_orthogonal, Muon leaves
  // the first and the last block to AdamW.
  OptimizerSpec optimizer = plain_sgd();
  // false: parameters with one dimension or none get no weight decay and no L1 penalty.
  bool decay_vectors = true;
  std::uint64_t seed = 0;  // Seed of initial values and dropout.
  // Schedule of a step's micro-batches through the stages of pp. With one stage the micro-batches
  // run one after the other, and their gradients add up.
  schedule::pipeline::Algorithm schedule = schedule::pipeline::Algorithm::kOneForwardOneBackward;
  int micro_batches = 1;
  // Above 0: the same bits for any number of replicas, shards and stages. A batch is cut into this
  // many parts, a power of two and a multiple of the replicas. Each replica runs its own parts one
  // by one, which sets micro_batches. All sums run along one tree over the parts, or use integers.
  // Supported for dp, fsdp and pp, on hosts of one kind with one thread per rank, in a group that
  // has_ordered_sums(). Gradients leave after backward.
  int micro_shards = 0;
  int virtual_stages = 0;  // Stages of each rank. 0: as few as the schedule allows.
  // First block of each stage except the first stage. Empty: chosen by the time that each block
  // takes on `sample`, so that the slowest stage is as fast as possible (plan/mesh/stages.h).
  // Without a sample, each stage gets the same number of blocks.
  std::vector<int> cuts = {};
  // Inputs of one micro-batch, by which `cuts` are chosen.
  std::vector<at::Tensor> sample = {};
  // ZeRO stage over fsdp. 1 shards optimizer state, 2 also gradients, 3 also parameters.
  int zero_stage = 3;
  Weights weights = Weights::kAuto;
  // Codec for the gradients that replicas (over dp, cp and ep) send each other: compress/spec.h.
  // Not supported with a scaled loss. "auto" needs replicas over dp and cp alone, and one stage.
  // Where replicas hold whole models on several hosts, it is the codec of data parallelism
  // (DataParallelOptions::codec).
  std::string codec = "none";
  // Combine gradients over dp by Adasum instead of averaging them (engine/internal/adasum.h). For
  // dp of a power of two, alone or with pp.
  bool adasum = false;
  // Method of attention over cp.
  ContextMethod context = ContextMethod::kRing;
  // Skip a step, on all ranks alike, if a gradient of any rank is not finite: step() then returns
  // false, and weights, optimizer state and buffers stay. Costs a pass over the gradients.
  bool skip_not_finite = true;
  // Measure what ParallelModel::gradient_noise() tells, at each step, with the norm of all
  // gradients: a pass over the gradients of the rank, and one over their average. No weight is
  // updated before all gradients are known. Needs skip_not_finite, and no micro_shards, cp or ep.
  bool measure_noise = false;
  // Gradient accumulation: number of train_step() calls before each step(). Each counts for its
  // part. ParallelModel::set_accumulate() changes it to fewer.
  int accumulate = 1;
  Recompute recompute = Recompute::kNone;
  Precision precision = Precision::kAsItIs;
  // Loss scaling. Always on with kF16, otherwise on where options are given.
  std::optional<LossScaleOptions> loss_scale = std::nullopt;
  std::int64_t batch = 0;  // Samples of a step over all replicas. 0: not known, and not checked.
  // Options for weights, gradients and buffers where every replica has all weights of its stages:
  // without fsdp and ep. The plan sets `weights`, `average` and `codec`. sync_buffers applies to
  // every plan. Parameters are float32 or float64.
  engine::DataParallelOptions data_parallel = {};
  // Batch norms (SyncBatchNorm, and BatchNorm in a Sequential) take statistics over the batches of
  // all replicas. Otherwise each replica takes its own, and the running statistics are the first
  // replica's.
  bool sync_batch_norm = false;
  // Where this rank's blocks compute, which weights, gradients and optimizer state share. Without
  // an index: the current device. Ranks may have devices of different kinds. On a device other than
  // the CPU: for dp alone, with one stage on a rank, without a codec, micro_shards, adasum and
  // shared weights, and without LARS, LAMB, Adafactor and Muon. Inputs and targets are moved there;
  // predictions are moved back.
  at::Device device = at::kCPU;
  // Names of passes to leave out (parallelize.h). A pass that the mesh needs is rejected.
  std::vector<std::string> without;
};

// Properties of a model against which a plan is checked.
struct ModelShape {
  int blocks = 1;
  std::vector<std::pair<std::string, std::int64_t>> splits = {};
  std::int64_t heads = 0, kv_heads = 0, experts = 0;  // Same as in BlockModel.
};

struct BlockModel;
ModelShape shape_of(const BlockModel& model);

// Checks a plan over the axes dp, fsdp, tp, pp, cp and ep. Throws Error(kBadConfig) if it cannot
// work: one line, with the nearest plan for as many ranks that can.
// Reasons: tensor parallelism, heads or experts that do not divide; context parallelism for a model
// that does not take parts of sequences; more stages than blocks; fewer samples than micro-batches
// of all replicas; numbers out of range; cuts that do not rise through the blocks; a codec that
// does not exist or has nothing to compress. Pure function.
void check_plan(const Plan& plan, const ModelShape& model, const plan::MeshLayout& mesh);

bool scales_loss(const Plan& plan);
// Micro-batches of each replica in a step.
int micro_batches(const Plan& plan, const plan::MeshLayout& mesh);
// Stages of each rank of the pipeline.
int virtual_stages(const Plan& plan);

}  // namespace weft::parallel

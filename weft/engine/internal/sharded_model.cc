// Divides a model into units and shards. running.cc has forward and backward, stepping.cc the step,
// sharded_changes.cc changes of the module, shards.cc the slices of checkpoints.
//
// Three kinds of groups, since each needs an order of its own:
//   group_      gradients, norms, steps: units in descending order
//   weights_    gathers of stage 3: in the order of passes
//   replicas    ranks of other groups with the same shard: sums, in the order in which units left
// A rank may wait in one of them while a transfer of another is under way. passes.h has the
// condition under which ranks cannot wait for each other in a circle.
//
// Order of construction: all ranks agree on the parameters; units get their memory; the optimizer
// gets the places of its state in it; the watch notes the memory that parameters have from now on.
// The last barrier lets no rank begin a step while another one still makes its model.
//
// Lifetime: hooks of tensors hold the model weakly. After its end, parameters of stage 3 have no
// memory, since passes_ owned it. Their use is then an error with a text.
#include "weft/engine/internal/sharded_model.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "weft/base/text/words.h"

namespace weft::engine {
namespace {

bool share_memory(const Group& group, Weights weights) {
  if (group.size() == 1) return false;
  WEFT_REQUIRE(
      weights != Weights::kShared || group.host() != nullptr,
      "sharded: shared weights need ranks that read each other's memory; use auto or private");
  return weights != Weights::kPrivate && group.host() != nullptr;
}

}  // namespace

ShardedModel::ShardedModel(Context context, OptimizerSpec optimizer)
    : Engine(std::move(context)),
      weights_(group_.duplicate(part_name(group_, "weights"))),
      shared_(share_memory(group_, options_.weights)),
      buffers_(options_.sync_buffers ? buffers() : Tensors{}) {
  check_options(optimizer);
  check_same();
  for (auto& param : params_) {
    param.apart = options_.apart && options_.apart->which(param.name);
    param.uncoded = options_.uncoded && options_.uncoded(param.name);
    if (param.tensor.requires_grad())
      param.arrays = internal::arrays_of(optimizer, param.name, param.tensor.sizes());
  }
  for (auto* replicas :
       {&options_.replicas, options_.apart ? &options_.apart->replicas : nullptr}) {
    // The caller may use its group meanwhile.
    if (replicas != nullptr && *replicas) *replicas = (*replicas)->duplicate("replicas");
  }
  memory_ = std::make_unique<internal::UnitMemory>(
      internal::UnitMemory::Context{group_, weights_, shared_, options_, params_, meter_});
  if (memory_->is_gathered()) {
    passes_ = std::make_unique<internal::Passes>(weights_, units(), options_.prefetch, meter_);
    running_.emplace(*passes_);
  }
  std::vector<at::ScalarType> types;
  std::vector<std::vector<std::int64_t>> shapes;
  for (const auto& param : params_) {
    types.push_back(param.tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
    shapes.push_back(param.tensor.sizes().vec());
  }
  updates_ = std::make_unique<internal::Updates>(std::move(optimizer), names(), types, shapes);
  memory_->place_state(*updates_);
  make_whole();
  watch_module();
  begin_hiding(
      "cannot be used here, since ZeRO divides sums of gradients over the ranks; to clip, "
      "use max_grad_norm of the optimizer; to read sums, call grad_norm() or gradients() of "
      "the parallel model");
  reducer_ = std::make_unique<internal::Gradients>(internal::Gradients::Context{
      group_, params_, units(), options_, meter_, *samples_, watch(), options_.check.get()});
  if (passes_) {
    passes_->on_passing([this](int block) {
      reducer_->may_wait(passes_->in_order());
      if (travels()) reducer_->passed(block);
    });
    passes_->on_release(
        [this](const internal::Unit& unit, const at::Tensor& whole) { check_copy(unit, whole); });
  }
  note_written();
  if (group_.size() > 1) group_.barrier();
}

void ShardedModel::check_options(const OptimizerSpec& optimizer) const {
  WEFT_REQUIRE(
      options_.stage >= 1 && options_.stage <= 3,
      "sharded: stage " + std::to_string(options_.stage) + "; the stages are 0, 1, 2 and 3");
  WEFT_REQUIRE(options_.average != ShardedOptions::Average::kAdasum,
               "sharded: adasum combines whole gradients; use stage 0");
  WEFT_REQUIRE(options_.prefetch >= 0, "sharded: prefetch must be at least 0");
  WEFT_REQUIRE(!options_.compute || *options_.compute == at::kBFloat16 ||
                   *options_.compute == at::kHalf || *options_.compute == at::kFloat,
               "sharded: compute must be bfloat16, float16 or float32");
  WEFT_REQUIRE(!options_.apart ||
                   (options_.apart->which && options_.average == ShardedOptions::Average::kSum),
               "sharded: options.apart needs `which`, and average = kSum");
  WEFT_REQUIRE(!options_.apart || optimizer.max_grad_norm == 0,
               "sharded: max_grad_norm is not supported with options.apart, since no rank of this "
               "group has the whole norm; set max_grad_norm = 0 and scale in step()");
  WEFT_REQUIRE(!options_.reduce || c10::isFloatingType(*options_.reduce),
               "sharded: reduce must be a floating-point type");
  for (const auto& param : params_) {
    WEFT_REQUIRE(c10::isFloatingType(param.tensor.scalar_type()) &&
                     param.tensor.device().is_cpu() && param.tensor.layout() == at::kStrided,
                 "sharded: parameter '" + param.name + "' is not a dense floating CPU tensor");
  }
}

ShardedModel::~ShardedModel() {
  if (!passes_) return;
  running_.reset();
  passes_.reset();
  for (internal::Unit& unit : units()) put_below(unit, {});
}

void ShardedModel::abandon(const std::string& why) noexcept {
  Engine::abandon(why);
  try {
    const Error error(Errc::kAborted, why);
    weights_.abort(error);
    if (options_.replicas) options_.replicas->abort(error);
    if (options_.apart && options_.apart->replicas) options_.apart->replicas->abort(error);
  } catch (const std::exception&) {  // if the abort fails, the peers run into their deadlines
  }
}

std::string ShardedModel::describe() const {
  std::string text =
      "ZeRO-" + std::to_string(options_.stage) + (shared_ ? ", shared: " : ", private: ") +
      counted(params_.size(), "parameter") + " of " + counted(blocks_.size(), "block") + " in " +
      counted(units().size(), "unit") + " over " + counted(group_.size(), "rank");
  if (options_.replicas) text += ", " + counted(options_.replicas->size(), "replica");
  if (options_.codec != "none") text += ", between these " + options_.codec;
  if (const auto apart = std::count_if(params_.begin(), params_.end(),
                                       [](const internal::Param& param) { return param.apart; }))
    text += ", " + std::to_string(apart) + " of the parameters in options.apart";
  if (options_.compute) text += std::string(", computed in ") + c10::toString(*options_.compute);
  if (options_.reduce) text += std::string(", reduced in ") + c10::toString(*options_.reduce);
  if (!options_.offload.empty()) text += ", optimizer state in " + options_.offload.string();
  return text;
}

}  // namespace weft::engine

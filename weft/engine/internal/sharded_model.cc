// Makes a sharded model of its parts, and saves and loads it. sharded_step.cc has the path of a
// step.
//
// Three kinds of groups, since each needs an order of its own:
//   group_      gradients, norms, steps: units in descending order
//   weights_    gathers of stage 3: in the order of passes
//   replicas    ranks of other groups with the same shard: sums, in the order in which units left
// A rank may wait in one of them while a transfer of another is under way. parameter_gathers.h has
// the condition under which ranks cannot wait for each other in a circle.
//
// Order of construction: all ranks agree on the parameters; units get their memory; the optimizer
// gets the places of its state in it; the watch notes the memory that parameters have from now on.
// The last barrier lets no rank begin a step while another one still makes its model.
//
// A load begins when no rank reads the masters any more, and ends by publish(), as a step does.
//
// Lifetime: hooks of tensors hold the model weakly. After its end, parameters of stage 3 have no
// memory, since gathers_ owned it. Their use is then an error with a text.
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

void check_sharded(const ShardedOptions& options, const OptimizerSpec& optimizer,
                   const std::vector<internal::Param>& params) {
  WEFT_REQUIRE(
      options.stage >= 1 && options.stage <= 3,
      "sharded: stage " + std::to_string(options.stage) + "; the stages are 0, 1, 2 and 3");
  WEFT_REQUIRE(options.average != ShardedOptions::Average::kAdasum,
               "sharded: adasum combines whole gradients; use stage 0");
  WEFT_REQUIRE(options.prefetch >= 0, "sharded: prefetch must be at least 0");
  WEFT_REQUIRE(!options.compute || *options.compute == at::kBFloat16 ||
                   *options.compute == at::kHalf || *options.compute == at::kFloat,
               "sharded: compute must be bfloat16, float16 or float32");
  WEFT_REQUIRE(
      !options.apart || (options.apart->which && options.average == ShardedOptions::Average::kSum),
      "sharded: options.apart needs `which`, and average = kSum");
  WEFT_REQUIRE(!options.apart || optimizer.max_grad_norm == 0,
               "sharded: max_grad_norm is not supported with options.apart, since no rank of this "
               "group has the whole norm; set max_grad_norm = 0 and scale in step()");
  WEFT_REQUIRE(!options.reduce || c10::isFloatingType(*options.reduce),
               "sharded: reduce must be a floating-point type");
  for (const auto& param : params) {
    WEFT_REQUIRE(c10::isFloatingType(param.tensor.scalar_type()) &&
                     param.tensor.device().is_cpu() && param.tensor.layout() == at::kStrided,
                 "sharded: parameter '" + param.name + "' is not a dense floating CPU tensor");
  }
}

}  // namespace

ShardedModel::ShardedModel(Context context, OptimizerSpec optimizer)
    : Engine(std::move(context)),
      weights_(group_.duplicate(part_name(group_, "weights"))),
      shared_(share_memory(group_, options_.weights)),
      buffers_(options_.sync_buffers ? buffers() : Tensors{}) {
  check_sharded(options_, optimizer, params_.all());
  params_.check_same(group_);
  for (auto& param : params_.all()) {
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
      internal::UnitMemory::Context{group_, weights_, shared_, options_, params_.all(), meter_});
  replica_sums_.emplace(options_, params_.all(), units(), group_.rank());
  if (memory_->is_gathered()) make_passes();
  std::vector<at::ScalarType> types;
  std::vector<std::vector<std::int64_t>> shapes;
  for (const auto& param : params_.all()) {
    types.push_back(param.tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
    shapes.push_back(param.tensor.sizes().vec());
  }
  updates_ =
      std::make_unique<internal::Updates>(std::move(optimizer), params_.names(), types, shapes);
  memory_->place_state(*updates_);
  begin_watch();
  begin_company();
  make_whole(/*divided=*/true, memory_->shared_pieces());
  watch_optimizer_settings();
  shard_updates_.emplace(internal::ShardUpdates::Context{group_, params_.all(), *memory_, *updates_,
                                                         whole_.get(), watch()});
  changes_.emplace(internal::ShardedChanges::Context{group_, options_.replicas, params_.all(),
                                                     *memory_, *shard_updates_, watch(),
                                                     [this] { return is_held_changed(); }});
  state_.emplace(
      internal::ShardedState::Context{group_, params_.all(), *memory_, *updates_, watch()});
  begin_hiding(
      "cannot be used here, since ZeRO divides sums of gradients over the ranks; to clip, "
      "use max_grad_norm of the optimizer; to read sums, call grad_norm() or gradients() of "
      "the parallel model");
  gradients_ = std::make_unique<internal::Gradients>(
      internal::Gradients::Context{.group = group_,
                                   .params = params_.all(),
                                   .units = units(),
                                   .options = options_,
                                   .meter = meter_,
                                   .replicas = *replica_sums_,
                                   .samples = *samples_,
                                   .watch = watch(),
                                   .company = company(),
                                   .check = options_.check.get()});
  shard_updates_->note_written();
  if (group_.size() > 1) group_.barrier();
}

// Groups of other replicas have numbered the model by their own rank 0.
void ShardedModel::begin_company() {
  at::Tensor number = at::full({1}, params_.model_name().number, at::kLong);
  if (options_.replicas) options_.replicas->broadcast(number, 0);
  join_company(number.item<std::int64_t>());
}

void ShardedModel::make_passes() {
  gathers_ =
      std::make_unique<internal::ParameterGathers>(weights_, units(), options_.prefetch, meter_);
  running_.emplace(*gathers_);
  gathers_->on_passing([this](int block) {
    gradients_->may_wait(gathers_->in_order());
    if (travels()) gradients_->passed(block);
  });
  gathers_->on_release([this](const internal::Unit& unit, const at::Tensor& whole) {
    changes_->check_copy(unit, whole);
  });
}

ShardedModel::~ShardedModel() {
  if (!gathers_) return;
  running_.reset();
  gathers_.reset();
  for (internal::Unit& unit : units()) put_below(unit, {});
}

void ShardedModel::abandon(const std::string& why) noexcept {
  Engine::abandon(why);
  in_backward_ = false;
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
  if (const auto apart = std::count_if(params_.all().begin(), params_.all().end(),
                                       [](const internal::Param& param) { return param.apart; }))
    text += ", " + std::to_string(apart) + " of the parameters in options.apart";
  if (options_.compute) text += std::string(", computed in ") + c10::toString(*options_.compute);
  if (options_.reduce) text += std::string(", reduced in ") + c10::toString(*options_.reduce);
  if (!options_.offload.empty()) text += ", optimizer state in " + options_.offload.string();
  return text;
}

Sharded::Memory ShardedModel::memory() {
  const Sharded::Memory now{meter_.parameters, meter_.gradients, meter_.state, meter_.peak};
  meter_.peak = meter_.parameters + meter_.gradients + meter_.state;
  return now;
}

void ShardedModel::each_whole(const Visit& visit) {
  if (shared_) group_.barrier();  // other ranks may still compute with shared masters
  if (!is_held_changed_anywhere()) check_values();
  changes_->pull();
  state_->each_whole(visit);
}

void ShardedModel::take_over(const std::map<std::string, at::Tensor>& given) {
  begin_load();
  go_home();
  changes_->forget_pulled();
  state_->scatter(given);
  end_load();
}

checkpoint::Slices ShardedModel::slices(const Sharded::Placing& placing, Wanted wanted) {
  // To save, values that the program has given to the module are taken from there: it is not
  // collective, so another rank may still use shared masters.
  if (wanted == Wanted::kToSave && !is_held_changed()) changes_->check_written();
  if (wanted == Wanted::kToLoad) changes_->pull_for_held();
  return state_->slices(placing, wanted);
}

void ShardedModel::begin_load() {
  end_pass();
  if (gathers_) gathers_->drain();
  if (shared_) group_.barrier();
}

void ShardedModel::end_load() {
  memory_->publish(true);
  watch().rebase(true);
  note_held();
  shard_updates_->note_written();
  if (shared_) group_.barrier();
}

// The caller publishes the masters then.
void ShardedModel::take_loaded() {
  watch().check(false);  // held() values are the masters', so they are no changes of the module
  if (!has_loaded(params_.size())) return changes_->forget_pulled();
  if (is_held_changed_anywhere()) memory_->publish(true);  // so that ranks have equal values again
  changes_->take_loaded();
  go_home();
}

}  // namespace weft::engine

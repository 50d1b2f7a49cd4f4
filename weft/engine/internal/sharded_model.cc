#include "weft/engine/internal/sharded_model.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "weft/base/text/words.h"
#include "weft/engine/internal/shared_block.h"
#include "weft/engine/parameter_cuts.h"
#include "weft/net/memory/host.h"

// Divides a model into units and shards. running.cc has forward and backward, stepping.cc the step.
namespace weft::engine {
namespace {

bool share_memory(const Group& group, Weights weights) {
  if (group.size() == 1) return false;
  WEFT_REQUIRE(
      weights != Weights::kShared || group.host() != nullptr,
      "sharded: shared weights need ranks that read each other's memory; use auto or private");
  return weights != Weights::kPrivate && group.host() != nullptr;
}

// Of a parameter that is gathered while its blocks run.
std::string refusal_of(const internal::Param& param) {
  return "the values of '" + param.name +
         "' are divided over the ranks between two steps (ZeRO-3); to read them, call state() of "
         "the parallel model, or gather() of a parallelize() model; to write them, call "
         "torch::load() or load_state()";
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
    if (replicas != nullptr && *replicas) *replicas = (*replicas)->duplicate("replicas");
  }
  const bool bounded = options_.stage < 3;
  units_ = internal::make_units(
      params_, {.ranks = group_.size(),
                .compute = options_.compute,
                .most_bytes = bounded ? static_cast<std::int64_t>(options_.unit_bytes) : 0});
  for (auto& unit : units_) place(unit);
  join_replicas();
  if (options_.stage == 3 && !shared_)
    passes_ = std::make_unique<internal::Passes>(weights_, units_, options_.prefetch, meter_);
  std::vector<at::ScalarType> types;
  std::vector<std::vector<std::int64_t>> shapes;
  for (const auto& param : params_) {
    types.push_back(param.tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
    shapes.push_back(param.tensor.sizes().vec());
  }
  updates_ = std::make_unique<internal::Updates>(std::move(optimizer), names(), types, shapes);
  place_state();
  make_whole();
  watch_module();
  begin_hiding(
      "cannot be used here, since ZeRO divides sums of gradients over the ranks; to clip, "
      "use max_grad_norm of the optimizer; to read sums, call grad_norm() or gradients() of "
      "the parallel model");
  reducer_ = std::make_unique<internal::Gradients>(internal::Gradients::Context{
      group_, params_, units_, options_, meter_, *samples_, watch(), options_.check.get()});
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

// Rank 0's values, in the type of the masters.
at::Tensor ShardedModel::values_of(const internal::Unit& unit) {
  at::Tensor whole = at::zeros({unit.elements}, at::TensorOptions(unit.master_type));
  for (std::size_t place = 0; place < unit.params.size(); ++place) {
    const at::Tensor param = params_[static_cast<std::size_t>(unit.params[place])].tensor.detach();
    at::Tensor into = whole.narrow(0, unit.offsets[place], param.numel());
    const at::Tensor& given = params_[static_cast<std::size_t>(unit.params[place])].tensor;
    if (options_.cuts && options_.cuts->has(given)) {
      options_.cuts->take(given, into);
    } else {
      into.copy_(param.reshape(-1));
    }
  }
  if (const auto& replicas = replicas_of(unit)) replicas->broadcast(whole);
  group_.broadcast(whole);
  return whole;
}

void ShardedModel::view_into(internal::Unit& unit) {
  for (std::size_t place = 0; place < unit.params.size(); ++place) {
    at::Tensor& param = params_[static_cast<std::size_t>(unit.params[place])].tensor;
    param.set_data(unit.flat.narrow(0, unit.offsets[place], param.numel()).view(param.sizes()));
  }
}

void ShardedModel::place(internal::Unit& unit) {
  const at::NoGradGuard guard;
  const at::Tensor whole = values_of(unit);
  const auto mine = [&](const at::Tensor& of) {
    return of.narrow(0, group_.rank() * unit.shard, unit.shard);
  };
  if (shared_) {
    std::byte* const block =
        weights_.host()->share(static_cast<std::size_t>(unit.bytes()), weights_.timeout());
    // The memory lives as long as a tensor in it.
    const auto memory = std::make_shared<internal::SharedBlock>(weights_, block, unit.bytes());
    unit.flat = at::from_blob(
        block, {unit.elements}, [memory](void*) {}, at::TensorOptions(unit.type));
    mine(unit.flat).copy_(mine(whole));
    group_.barrier();
  } else {
    unit.flat = whole.to(unit.type);
  }
  const bool gathered = options_.stage == 3 && !shared_;
  unit.master = unit.master_type == unit.type && !gathered ? mine(unit.flat) : mine(whole).clone();
  view_into(unit);
  if (gathered) {
    for (const int param : unit.params) {
      unit.gathered.push_back(params_[internal::index(param)].tensor);
      engine::refuse(unit.gathered.back(), refusal_of(params_[internal::index(param)]));
    }
    put_below(unit, {});
  }
  const auto shard_bytes = static_cast<std::int64_t>(unit.master.nbytes());
  if (!gathered)
    meter_.add(meter_.parameters, shared_ ? unit.bytes() / group_.size() : unit.bytes());
  if (gathered && unit.master_type == unit.type) {
    meter_.add(meter_.parameters, shard_bytes);
  } else if (unit.master_type != unit.type) {
    meter_.add(meter_.state, shard_bytes);
  }
}

// Allocates the optimizer state of the shards, in memory or in a mapped file.
void ShardedModel::place_state() {
  const auto bytes_of_array = [](const internal::Unit& unit) {
    return (unit.shard * static_cast<std::int64_t>(c10::elementSize(unit.master_type)) + 63) / 64 *
           64;
  };
  std::int64_t bytes = 0;
  for (const auto& unit : units_)
    bytes += unit.trainable ? bytes_of_array(unit) * static_cast<std::int64_t>(unit.arrays) : 0;
  if (!options_.offload.empty() && bytes > 0) {
    state_file_ =
        std::make_unique<internal::MappedFile>(options_.offload, static_cast<std::size_t>(bytes));
  }
  std::byte* next = state_file_ ? state_file_->data() : nullptr;
  for (auto& unit : units_) {
    if (!unit.trainable) continue;
    for (std::size_t array = 0; array < unit.arrays; ++array) {
      const auto type = at::TensorOptions(unit.master_type);
      unit.state.push_back(state_file_ ? at::from_blob(next, {unit.shard}, type)
                                       : at::empty({unit.shard}, type));
      unit.state.back().fill_(updates_->spec().initial_accumulator);
      if (state_file_) next += bytes_of_array(unit);
    }
    for (std::size_t place = 0; place < unit.params.size(); ++place) {
      const int param = unit.params[place];
      const auto piece = internal::piece_of(
          unit, place, params_[internal::index(param)].tensor.numel(), group_.rank());
      if (piece.end <= piece.begin) continue;
      const auto at = [&](const at::Tensor& flat) {
        return static_cast<std::byte*>(flat.data_ptr()) +
               static_cast<std::size_t>(piece.at) * flat.element_size();
      };
      internal::Updates::Place mine{.weight = at(unit.master), .first = piece.begin};
      for (std::size_t array = 0; array < unit.arrays; ++array)
        mine.state[array] = at(unit.state[array]);
      updates_->put(param, mine);
    }
  }
  meter_.add(meter_.state, bytes);
}

// The ranks with which a unit's shards are summed; null: none.
const std::optional<Group>& ShardedModel::replicas_of(const internal::Unit& unit) const {
  return unit.apart ? options_.apart->replicas : options_.replicas;
}

void ShardedModel::join_replicas() {
  const compress::Spec spec = compress::parse(options_.codec);
  const bool codes = spec.kind != compress::Kind::kNone;
  WEFT_REQUIRE(spec.kind != compress::Kind::kAuto,
               "sharded: codec = \"auto\" is for DataParallel; name a codec");
  WEFT_REQUIRE(!codes || options_.average != ShardedOptions::Average::kBySamples,
               "sharded: a codec needs the same weight of gradients in every step; average by "
               "ranks, or sum");
  for (std::size_t i = 0; i < units_.size(); ++i) {
    internal::Unit& unit = units_[i];
    const auto& replicas = replicas_of(unit);
    if (!replicas || !unit.trainable) continue;
    if (!codes || unit.uncoded) {
      unit.exchange = std::make_shared<CodecExchange>(*replicas);
      continue;
    }
    const at::ScalarType type = options_.reduce.value_or(unit.type);
    WEFT_REQUIRE(type == at::kFloat, std::string("sharded: a codec needs float32 gradients, not ") +
                                         c10::toString(type) + "; set codec = \"none\"");
    compress::Unit whole{
        .count = unit.elements, .matrices = {}, .id = static_cast<std::uint32_t>(i)};
    for (std::size_t place = 0; place < unit.params.size(); ++place) {
      const at::Tensor& like = params_[internal::index(unit.params[place])].tensor;
      if (like.numel() > 0) whole.matrices.push_back(matrix_at(unit.offsets[place], like));
    }
    unit.exchange = std::make_shared<CodecExchange>(
        *replicas, spec, part_of(whole, group_.rank() * unit.shard, unit.shard));
  }
}

std::vector<std::span<float>> ShardedModel::codec_memory() {
  std::vector<std::span<float>> all;
  for (const auto& unit : units_) {
    if (!unit.exchange) continue;
    for (const auto& part : unit.exchange->state()) all.push_back(part);
  }
  return all;
}

ShardedModel::~ShardedModel() {
  if (!passes_) return;
  passes_.reset();
  for (internal::Unit& unit : units_) put_below(unit, {});
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
      counted(units_.size(), "unit") + " over " + counted(group_.size(), "rank");
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

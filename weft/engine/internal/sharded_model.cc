#include "weft/engine/internal/sharded_model.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <unordered_map>

#include "weft/engine/internal/ready_hook.h"
#include "weft/net/memory/host.h"

// How a model is taken apart; what happens then is in running.cc and stepping.cc.
namespace weft::parallel {
namespace {

Group of_its_own(const Group& group, const char* name) {
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return group.subgroup(ranks, name);
}

bool share_memory(const Group& group, const std::string& form) {
  WEFT_REQUIRE(form == "auto" || form == "shared" || form == "gathered",
               "sharded: unknown form '" + form + "'; there are auto, shared, gathered");
  if (group.size() == 1) return false;
  WEFT_REQUIRE(form != "shared" || group.host() != nullptr,
               "sharded: form = \"shared\" needs ranks that read each other's memory; take \"auto\" or \"gathered\"");
  return form != "gathered" && group.host() != nullptr;
}

std::string text_of(const std::vector<internal::Param>& params) {
  std::string text;
  for (const auto& param : params) {
    text += param.name + " " + c10::toString(param.tensor.scalar_type()) + "[";
    for (std::int64_t d = 0; d < param.tensor.dim(); ++d) text += (d > 0 ? ", " : "") + std::to_string(param.tensor.size(d));
    text += std::string("]") + (param.tensor.requires_grad() ? "" : " frozen") + ";";
  }
  return text;
}

}  // namespace

ShardedModel::ShardedModel(Subject subject)
    : blocks_(std::move(subject.blocks)),
      options_(std::move(subject.options)),
      group_(std::move(subject.group)),
      weights_(of_its_own(group_, "sharded weights")),
      gradients_(of_its_own(group_, "sharded gradients")),
      shared_(share_memory(group_, options_.form)) {
  check_options(subject.optimizer);
  collect_params();
  check_same();
  for (auto* replicas : {&options_.replicas, options_.apart ? &options_.apart->replicas : nullptr}) {
    if (replicas != nullptr && *replicas) *replicas = of_its_own(**replicas, "sharded replicas");
  }
  const bool bounded = options_.stage < 3;
  units_ = internal::make_units(
      params_,
      {.ranks = group_.size(), .compute = options_.compute, .most_bytes = bounded ? static_cast<std::int64_t>(options_.unit_bytes) : 0});
  for (auto& unit : units_) place(unit);
  if (options_.stage == 3 && !shared_) passes_ = std::make_unique<internal::Passes>(weights_, units_, options_.prefetch, meter_);
  updates_ = std::make_unique<internal::Updates>(std::move(subject.optimizer), params_, units_, options_);
  meter_.add(meter_.state, updates_->bytes());
  reducer_ = std::make_unique<internal::Gradients>(internal::Gradients::Subject{gradients_, params_, units_, options_, meter_, samples_});
  if (passes_) {
    passes_->on_passing([this](int block) {
      reducer_->may_wait(passes_->in_order());
      if (travels()) reducer_->passed(block);
    });
  }
  if (group_.size() > 1) gradients_.barrier();
}

void ShardedModel::check_options(const OptimizerSpec& optimizer) const {
  WEFT_REQUIRE(options_.stage >= 1 && options_.stage <= 3, "sharded: stage " + std::to_string(options_.stage) + "; there are 1, 2 and 3");
  WEFT_REQUIRE(options_.prefetch >= 0, "sharded: prefetch must be at least 0");
  WEFT_REQUIRE(!options_.compute || *options_.compute == at::kBFloat16 || *options_.compute == at::kHalf || *options_.compute == at::kFloat,
               "sharded: compute must be bfloat16, float16 or float32");
  WEFT_REQUIRE(!options_.apart || (options_.apart->which && options_.average == ShardedOptions::Average::kSum),
               "sharded: parameters that lie apart need to be named, and average = kSum");
  WEFT_REQUIRE(
      !options_.apart || optimizer.max_grad_norm == 0,
      "sharded: with parameters that lie apart no rank of this group sees the whole norm; set max_grad_norm = 0 and scale in step()");
  WEFT_REQUIRE(!options_.reduce || c10::isFloatingType(*options_.reduce), "sharded: gradients are reduced in a floating type");
}

void ShardedModel::collect_params() {
  std::unordered_map<const c10::TensorImpl*, std::size_t> known;
  for (int block = 0; block < static_cast<int>(blocks_.size()); ++block) {
    const Block& from = blocks_[static_cast<std::size_t>(block)];
    for (const auto& item : from.module->named_parameters(true)) {
      const auto [found, is_new] = known.try_emplace(item.value().unsafeGetTensorImpl(), params_.size());
      if (is_new) {
        const std::string full = (from.name.empty() ? "" : from.name + ".") + item.key();
        const bool apart = options_.apart && options_.apart->which(full), uncoded = options_.uncoded && options_.uncoded(full);
        params_.push_back({full, item.value(), {}, apart, uncoded});
      }
      auto& users = params_[found->second].blocks;
      if (users.empty() || users.back() != block) users.push_back(block);
    }
  }
  const auto trains = [](const internal::Param& param) { return param.tensor.requires_grad(); };
  WEFT_REQUIRE(std::any_of(params_.begin(), params_.end(), trains), "sharded: no parameter requires a gradient");
  for (const auto& param : params_) {
    WEFT_REQUIRE(c10::isFloatingType(param.tensor.scalar_type()) && param.tensor.device().is_cpu() && param.tensor.layout() == at::kStrided,
                 "sharded: parameter '" + param.name + "' is not a dense floating CPU tensor");
    const auto same = [&](const internal::Param& other) { return &other != &param && other.name == param.name; };
    WEFT_REQUIRE(std::none_of(params_.begin(), params_.end(), same),
                 "sharded: two parameters are called '" + param.name + "'; give blocks different names");
  }
}

// Everybody compares with rank 0's list.
void ShardedModel::check_same() const {
  const std::string mine = text_of(params_);
  at::Tensor length = at::scalar_tensor(static_cast<std::int64_t>(mine.size()), at::kLong);
  gradients_.broadcast(length);
  at::Tensor text = at::zeros({length.item<std::int64_t>()}, at::kByte);
  if (group_.rank() == 0) std::memcpy(text.data_ptr(), mine.data(), mine.size());
  gradients_.broadcast(text);
  const std::string first(static_cast<const char*>(text.data_ptr()), static_cast<std::size_t>(text.numel()));
  at::Tensor differs = at::scalar_tensor(first == mine ? 0 : 1, at::kLong);
  gradients_.all_reduce(differs, ReduceOp::kMax);
  if (differs.item<std::int64_t>() == 0) return;
  const auto at = static_cast<std::size_t>(std::mismatch(first.begin(), first.end(), mine.begin(), mine.end()).first - first.begin());
  const auto entry = [&](const std::string& list) {
    const std::size_t begin = at == 0 ? 0 : list.rfind(';', std::min(at, list.size()) - 1) + 1;
    return begin >= list.size() ? std::string("nothing") : "'" + list.substr(begin, list.find(';', begin) - begin) + "'";
  };
  throw Error(Errc::kInvalidArgument,
              first == mine ? "sharded: another rank's parameters differ from rank 0's; its error names the first"
                            : "sharded: the ranks' parameters differ: rank 0 has " + entry(first) + ", this one " + entry(mine),
              {"sharded", group_.rank()});
}

// Rank 0's, in the masters' type.
at::Tensor ShardedModel::values_of(const internal::Unit& unit) {
  at::Tensor whole = at::zeros({unit.elements}, at::TensorOptions(unit.master_type));
  for (std::size_t place = 0; place < unit.params.size(); ++place) {
    const at::Tensor param = params_[static_cast<std::size_t>(unit.params[place])].tensor.detach();
    whole.narrow(0, unit.offsets[place], param.numel()).copy_(param.reshape(-1));
  }
  if (const auto& replicas = internal::replicas_of(unit, options_)) replicas->broadcast(whole);
  gradients_.broadcast(whole);
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
  const auto mine = [&](const at::Tensor& of) { return of.narrow(0, group_.rank() * unit.shard, unit.shard); };
  if (shared_) {
    std::byte* const block = weights_.host()->share(static_cast<std::size_t>(unit.bytes()), weights_.timeout());
    // The block lives as long as a tensor of it: the deleter holds the group.
    unit.flat = at::from_blob(
        block, {unit.elements}, [group = weights_](void*) {}, at::TensorOptions(unit.type));
    mine(unit.flat).copy_(mine(whole));
    gradients_.barrier();
  } else {
    unit.flat = whole.to(unit.type);
  }
  const bool gathered = options_.stage == 3 && !shared_;
  unit.master = unit.master_type == unit.type && !gathered ? mine(unit.flat) : mine(whole).clone();
  view_into(unit);
  if (gathered) put_below(unit, {});
  const auto shard_bytes = static_cast<std::int64_t>(unit.master.nbytes());
  if (!gathered) meter_.add(meter_.parameters, shared_ ? unit.bytes() / group_.size() : unit.bytes());
  if (gathered && unit.master_type == unit.type) {
    meter_.add(meter_.parameters, shard_bytes);
  } else if (unit.master_type != unit.type) {
    meter_.add(meter_.state, shard_bytes);
  }
}

void ShardedModel::start() {
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (!params_[i].tensor.requires_grad()) continue;
    add_ready_hook(params_[i].tensor, [weak = weak_from_this(), param = static_cast<int>(i)] {
      if (auto model = weak.lock()) model->on_ready(param);
    });
  }
}

void ShardedModel::abandon() noexcept {
  try {
    const Error why(Errc::kAborted, "rank " + std::to_string(group_.rank()) + " has left its sharded model in the midst of a step");
    weights_.abort(why);
    gradients_.abort(why);
    if (options_.replicas) options_.replicas->abort(why);
    if (options_.apart && options_.apart->replicas) options_.apart->replicas->abort(why);
  } catch (const std::exception&) {  // an abort that fails leaves peers to their deadlines
  }
}

std::string ShardedModel::describe() const {
  std::string text = "ZeRO-" + std::to_string(options_.stage) + (shared_ ? ", shared: " : ", gathered: ") + std::to_string(params_.size()) +
                     " parameters of " + std::to_string(blocks_.size()) + (blocks_.size() == 1 ? " block in " : " blocks in ") +
                     std::to_string(units_.size()) + (units_.size() == 1 ? " unit over " : " units over ") + std::to_string(group_.size()) +
                     (group_.size() == 1 ? " rank" : " ranks");
  if (options_.replicas) text += ", " + std::to_string(options_.replicas->size()) + " replicas";
  if (options_.codec != "none") text += ", between these " + options_.codec;
  if (const auto apart = std::count_if(params_.begin(), params_.end(), [](const internal::Param& param) { return param.apart; }))
    text += ", " + std::to_string(apart) + " of the parameters apart";
  if (options_.compute) text += std::string(", computed in ") + c10::toString(*options_.compute);
  if (options_.reduce) text += std::string(", reduced in ") + c10::toString(*options_.reduce);
  if (!options_.offload.empty()) text += ", optimiser state in " + options_.offload.string();
  return text;
}

}  // namespace weft::parallel

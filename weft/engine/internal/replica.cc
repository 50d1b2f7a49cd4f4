#include "weft/engine/internal/replica.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <cmath>
#include <cstring>

#include "weft/compress/spec.h"
#include "weft/engine/internal/ready_hook.h"
#include "weft/engine/internal/trial.h"
#include "weft/engine/update_rule.h"
#include "weft/kernels/reduce.h"
#include "weft/net/memory/host.h"

namespace weft::parallel {
namespace {

// "fc1.weight Float[128, 784]; …", what all ranks must agree on.
std::string list_of(const std::vector<std::string>& names, const std::vector<at::Tensor>& tensors) {
  std::string list;
  for (std::size_t i = 0; i < names.size(); ++i) {
    list += names[i] + " " + c10::toString(tensors[i].scalar_type()) + "[";
    for (int64_t d = 0; d < tensors[i].dim(); ++d) list += (d > 0 ? ", " : "") + std::to_string(tensors[i].size(d));
    list += "]; ";
  }
  return list;
}

std::string first_difference(const std::string& mine, const std::string& other) {
  std::size_t at = 0;
  while (at < mine.size() && at < other.size() && mine[at] == other[at]) ++at;
  const std::size_t begin = at == 0 ? 0 : mine.rfind("; ", at) == std::string::npos ? 0 : mine.rfind("; ", at) + 2;
  const auto entry = [&](const std::string& list) {
    return begin >= list.size() ? std::string("nothing") : "'" + list.substr(begin, list.find("; ", begin) - begin) + "'";
  };
  return entry(mine) + ", and " + entry(other);
}

at::Tensor bytes_tensor(const std::string& text) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::memcpy(tensor.data_ptr(), text.data(), text.size());
  return tensor;
}

}  // namespace

Replica::Replica(std::shared_ptr<torch::nn::Module> module, Group group, DataParallelOptions options)
    : module_(std::move(module)), group_(std::move(group)), options_(std::move(options)) {
  const auto one_of = [](const std::string& value, std::initializer_list<const char*> known, const char* what) {
    std::string all;
    for (const char* name : known) {
      if (value == name) return;
      all += (all.empty() ? "" : ", ") + std::string(name);
    }
    throw Error(Errc::kInvalidArgument, std::string("data_parallel: unknown ") + what + " '" + value + "'; there are " + all);
  };
  one_of(options_.weights, {"auto", "shared", "private"}, "weights");
  compress::parse(options_.codec);  // complains
  for (const auto& item : module_->named_parameters(true)) {
    if (item.value().requires_grad()) {
      params_.push_back(item.value());
      names_.push_back(item.key());
    } else {
      frozen_.push_back(item.value());
    }
  }
  buffers_ = module_->buffers(true);
  WEFT_REQUIRE(!params_.empty(), "data_parallel: the module has no parameter that requires a gradient");
  ready_.assign(params_.size(), false);
}

Replica::~Replica() = default;

void Replica::start() {
  if (group_.size() > 1) {
    check_same();
    broadcast_all();
  }
  sync_ = group_.host() != nullptr ? internal::make_host_sync(subject(nullptr, 0)) : internal::make_message_sync(subject(nullptr, 0));
  for (std::size_t i = 0; i < params_.size(); ++i) {
    add_ready_hook(params_[i], [weak = weak_from_this(), param = static_cast<int>(i)] {
      if (auto replica = weak.lock()) replica->on_ready(param);
    });
  }
}

internal::Subject Replica::subject(internal::Updater* updater, double max_grad_norm) {
  return {.group = group_,
          .params = params_,
          .buffers = options_.sync_buffers && group_.size() > 1 ? buffers_ : std::vector<at::Tensor>{},
          .options = options_,
          .updater = updater,
          .max_grad_norm = max_grad_norm,
          .samples = &samples_,
          .times = &times_};
}

// Each rank shows a hash of its list; where one differs from rank 0's, both lists are sent and the first difference is named.
void Replica::check_same() const {
  const std::string mine = list_of(names_, params_);
  at::Tensor hash = at::tensor({static_cast<int64_t>(std::hash<std::string>{}(mine) >> 1), static_cast<int64_t>(mine.size())}, at::kLong);
  at::Tensor all = at::empty({group_.size(), 2}, at::kLong);
  group_.all_gather(all, hash);
  for (int peer = 1; peer < group_.size(); ++peer) {
    if (at::equal(all[peer], all[0])) continue;
    std::string others[2];
    for (int i = 0; i < 2; ++i) {
      const int root = i == 0 ? 0 : peer;
      at::Tensor text = group_.rank() == root ? bytes_tensor(mine) : at::empty({all[root][1].item<int64_t>()}, at::kByte);
      group_.broadcast(text, root);
      others[i].assign(static_cast<const char*>(text.data_ptr()), static_cast<std::size_t>(text.numel()));
    }
    throw Error(Errc::kInvalidArgument,
                "data_parallel: the ranks' modules differ: rank 0 has " + first_difference(others[0], others[1]) + " on rank " +
                    std::to_string(peer),
                {"data_parallel", group_.rank(), peer});
  }
}

void Replica::broadcast_all() {
  at::NoGradGuard guard;
  for (auto* list : {&params_, &frozen_, &buffers_}) {
    for (at::Tensor& tensor : *list) {
      at::Tensor data = tensor.detach();
      group_.broadcast(data, 0);
    }
  }
}

void Replica::use_optimizer(OptimizerSpec spec) {
  WEFT_REQUIRE(updater_ == nullptr, "optimizer(): the module has an optimizer already");
  bool plain = true;
  for (const auto& param : params_) plain = plain && param.scalar_type() == at::kFloat && param.is_contiguous();
  WEFT_REQUIRE(
      plain,
      "optimizer(): parameters must be contiguous float32; give others a torch::optim optimiser, data_parallel averages their gradients");
  WEFT_REQUIRE(options_.weights != "shared" || group_.host() != nullptr,
               "weights = \"shared\" needs all ranks on one host that can share memory; use \"auto\" or \"private\"");
  const auto layout = internal::layout_of(params_);
  std::vector<float*> weights, state;
  for (auto& param : params_) weights.push_back(param.data_ptr<float>());
  const bool can_share = group_.host() != nullptr && group_.size() > 1 && options_.weights != "private";
  if (can_share) choose_weights(spec, layout, weights);
  const std::size_t arrays = state_names(spec.rule).size();
  for (std::size_t i = 0; i < arrays; ++i) {
    if (shared_weights_) {
      state.push_back(
          reinterpret_cast<float*>(group_.host()->share(static_cast<std::size_t>(layout.elements) * sizeof(float), group_.timeout())));
    } else {
      private_state_.push_back(at::zeros({layout.elements}));
      state.push_back(private_state_.back().data_ptr<float>());
    }
  }
  if (spec.initial_accumulator != 0 && (group_.rank() == 0 || !shared_weights_)) {
    std::fill_n(state[0], layout.elements, static_cast<float>(spec.initial_accumulator));
  }
  const double max_grad_norm = spec.max_grad_norm;
  updater_ = std::make_unique<internal::RuleUpdater>(std::move(spec), layout, std::move(weights), std::move(state), names_);
  auto what = subject(updater_.get(), max_grad_norm);
  what.whole = whole_;
  if (group_.host() == nullptr) {
    sync_ = internal::make_message_sync(what);
  } else if (shared_weights_ || whole_ || group_.size() == 1) {
    sync_ = internal::make_host_sync(what);
  }
  if (group_.size() > 1) group_.barrier();
}

// A block that all ranks of the host see gets rank 0's values. Unless private weights prove faster, the parameters move there.
void Replica::choose_weights(const OptimizerSpec& spec, const internal::Layout& layout, std::vector<float*>& weights) {
  at::NoGradGuard guard;
  auto* block = reinterpret_cast<float*>(group_.host()->share(static_cast<std::size_t>(layout.elements) * sizeof(float), group_.timeout()));
  std::vector<float*> shared;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    shared.push_back(block + layout.offsets[i]);
    if (group_.rank() == 0) std::memcpy(shared.back(), weights[i], static_cast<std::size_t>(params_[i].numel()) * sizeof(float));
  }
  group_.barrier();
  whole_ = options_.weights == "auto" && spec.max_grad_norm <= 0 && layout.elements <= internal::kTrialMost &&
           internal::whole_is_faster(subject(nullptr, 0), layout, shared, weights);
  if (whole_) return;
  shared_weights_ = true;
  weights = shared;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    // The block lives as long as a tensor of it: the deleter holds the group.
    params_[i].set_data(at::from_blob(
        shared[i], params_[i].sizes(), [group = group_](void*) {}, params_[i].options().requires_grad(false)));
  }
  group_.barrier();
}

internal::RuleUpdater& Replica::updater() {
  WEFT_CHECK(updater_ != nullptr, "the replica has no optimizer");
  return *updater_;
}

void Replica::settle() {
  if (!updater_ || !updater_->held()) return;
  sync_->settle();
  updater_->stepped(sync_->used());
}

void Replica::on_ready(int param) {
  if (paused_ > 0) return;
  if (ready_[static_cast<std::size_t>(param)]) {
    const Error error(Errc::kInvalidArgument,
                      "a second backward() has reached '" + names_[static_cast<std::size_t>(param)] +
                          "' before step(): peers may have read its gradient; wrap all but the last backward in no_sync()",
                      {"backward", group_.rank()});
    group_.abort(error);
    throw error;
  }
  ready_[static_cast<std::size_t>(param)] = true;
  if (!any_ready_) {
    any_ready_ = true;
    settle();
    // Without an optimiser of ours the end of backward() is the end of the step.
    if (!updater_) torch::autograd::Engine::get_default_engine().queue_callback([self = shared_from_this()] { self->finish(); });
  }
  sync_->ready(param);
}

void Replica::finish() {
  settle();
  sync_->finish();
  std::fill(ready_.begin(), ready_.end(), false);
  any_ready_ = false;
}

void Replica::step() {
  finish();
  // Weights kept private although the ranks share memory: the gradients have been averaged in place, each rank updates all of its own.
  if (!shared_weights_ && !whole_ && group_.host() != nullptr && group_.size() > 1) update_alone();
  if (sync_->pending()) {
    updater_->hold();
  } else {
    updater_->stepped(sync_->used());
  }
  ++steps_;
}

void Replica::update_alone() {
  at::NoGradGuard guard;
  const double most = updater_->spec().max_grad_norm;
  double squares = 0;
  for (const auto& param : params_) {
    if (most > 0 && param.grad().defined()) squares += kernels::sum_of_squares(param.grad().const_data_ptr<float>(), param.numel());
  }
  norm_ = std::sqrt(squares);
  const double factor = most > 0 ? std::min(1.0, most / (norm_ + 1e-6)) : 1.0;
  for (std::size_t param = 0; param < params_.size(); ++param) {
    at::Tensor& grad = params_[param].mutable_grad();
    if (!grad.defined()) continue;
    if (factor < 1.0) kernels::scale(grad.data_ptr<float>(), grad.numel(), static_cast<float>(factor));
    updater_->update(static_cast<int>(param), 0, grad.numel(), grad.const_data_ptr<float>());
  }
}

void Replica::zero_grad() {
  for (auto& param : params_) param.mutable_grad().reset();
}

}  // namespace weft::parallel

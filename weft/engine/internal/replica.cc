// The state of a step on this rank, from the first gradient on:
//
//   any_ready_   a gradient of this step has reached the transport
//   passed_      this step has a backward pass; skip_batch() counts as one
//   reduced_     the sums are computed; step() has only to apply them
//   dropped_     the program has dropped the gradients that the transport has
//   spent_       the gradients in grad() are those that the last step() has used
//
// Optimizer::zero_grad() is not collective, but peers may need this rank's gradients to end their
// batch. So drop_own_gradients() only notes that they do not count. The next call that needs the
// peers anyway ends the batch (end_dropped). zero_grad() of this class is collective and ends it at
// once.
//
// Order of step():
//   end_dropped(), drop_spent()     this rank's gradients are those that one process would use
//   take_module_changes()           changes of the module count before the update
//   grad_norm(), if it clips        waits for all sums before any weight changes
//   finish(), finish_whole()        the transport sums and updates
//   stepped() or hold()             counts the step now, or when the delayed updates are done
//   ReplicaMemory::share_rank_0()   unlike devices take rank 0's bits
//   end_module_changes()            all digests are known: compares values if they differ
//   spent_.note()                   the next backward() must not add to these gradients; with a
//                                   torch::optim optimizer, at the end of backward()
//
// Threads: as for Engine. Shared weights are written by several ranks, without a lock. Within a
// step the transport orders them. Everywhere else a barrier does.
#include "weft/engine/internal/replica.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>

#include "weft/comm/texts.h"
#include "weft/compress/spec.h"
#include "weft/engine/internal/shared_block.h"

namespace weft::engine {

using internal::index;

Replica::Replica(Context what) : Engine(std::move(what)), memory_(group_, params_) {
  compress::parse(options_.data_parallel.codec);  // throws if invalid
  WEFT_REQUIRE(
      !options_.replicas && !options_.apart && !options_.compute && !options_.reduce &&
          options_.offload.empty(),
      "sharded: replicas, apart, compute, reduce and offload are not supported at stage 0");
  // A model of an earlier group may have left the parameters in memory that ranks share.
  for (auto& param : params_.all()) {
    if (param.tensor.is_cpu()) internal::take_out_of_shared_block(param.tensor);
  }
  for (std::size_t i = 0; i < params_.trained(); ++i) trained_params_.push_back(params_[i].tensor);
  buffers_ = buffers();
  ready_.assign(params_.trained(), false);
  device_ranks_ = params_.check_same(group_);
  if (has_devices()) check_device_options();
  if (group_.size() > 1) {
    const at::NoGradGuard guard;
    const auto broadcast = [&](const at::Tensor& tensor) {
      at::Tensor data = tensor.detach();
      group_.broadcast(data, 0);
    };
    for (const auto& param : params_.all()) broadcast(param.tensor);
    for (const auto& buffer : buffers_) broadcast(buffer);
  }
  begin_watch();
  watch().note_samples();
  join_company(params_.model_name().number);
  make_transport();
}

void Replica::check_device_options() const {
  const auto refuse = [](bool found, const char* what) {
    WEFT_REQUIRE(!found, std::string("data_parallel: ") + what +
                             " is not supported with parameters on a device; leave it out, or "
                             "keep the model on the CPU");
  };
  WEFT_REQUIRE(!has_unlike_devices() || !group_.has_device_backend(),
               "data_parallel: transport nccl needs a device on each rank, and some ranks' "
               "parameters are on the CPU; use transport auto");
  refuse(options_.data_parallel.codec != "none", "a codec");
  refuse(is_adasum(), "adasum");
  refuse(options_.weights == Weights::kShared, "weights = shared");
}

void Replica::make_transport() {
  internal::TransportContext what = context(updates_.get());
  transport_ = is_adasum()         ? make_adasum_transport(std::move(what))
               : host() != nullptr ? make_in_place_transport(std::move(what))
                                   : make_message_transport(std::move(what));
}

internal::TransportContext Replica::context(internal::Updates* updates) {
  internal::TransportContext context{.group = group_,
                                     .name = params_.model_name(),
                                     .params = trained_params_,
                                     .buffers = {},
                                     .options = options_.data_parallel,
                                     .updates = updates,
                                     .private_weights = memory_.is_private(),
                                     .check = options_.check.get(),
                                     .devices = has_devices(),
                                     .samples = samples_.get(),
                                     .watch = &watch(),
                                     .company = &company(),
                                     .times = &times_};
  context.options.average = options_.average;
  if (options_.data_parallel.sync_buffers && group_.size() > 1) context.buffers = buffers_;
  // Clipping and norms of tensors wait for all gradients.
  if (has_devices()) context.options.overlap_forward = false;
  if (updates != nullptr &&
      (updates->spec().max_grad_norm > 0 || optim::needs_whole_tensors(updates->spec().rule))) {
    context.options.update_in_backward = context.options.overlap_forward = false;
  }
  return context;
}

void Replica::use_optimizer(OptimizerSpec spec, bool hides) {
  WEFT_REQUIRE(updates_ == nullptr, "optimizer(): the module has an optimizer already");
  compare_written();
  std::vector<at::ScalarType> types;
  std::vector<std::vector<std::int64_t>> shapes;
  for (const auto& param : trained_params_) {
    types.push_back(param.scalar_type());
    shapes.push_back(param.sizes().vec());
    WEFT_REQUIRE(
        (types.back() == at::kFloat || types.back() == at::kDouble) && param.is_contiguous(),
        "optimizer(): '" + params_[shapes.size() - 1].name +
            "' is not contiguous float32 or float64; for such parameters use a torch::optim "
            "optimizer, and data_parallel averages their gradients");
  }
  WEFT_REQUIRE(options_.weights != Weights::kShared || host() != nullptr,
               "shared weights need all ranks on one host with shared memory, and no adasum; use "
               "auto or private");
  if (hides || group_.size() > 1) {
    begin_hiding(
        "cannot be used here, since step() averages it over the ranks first; to clip, use "
        "max_grad_norm of the optimizer; to read or change averages, use an optimizer of "
        "torch::optim, or gradients() of a Sharded or parallelize() model");
  }
  std::vector<std::string> trained = params_.names();
  trained.resize(params_.trained());
  const double first_value = spec.initial_accumulator;
  WEFT_REQUIRE(!has_devices() || !optim::needs_whole_tensors(spec.rule),
               "optimizer(): " + optim::name_of(spec.rule) +
                   " is not supported with parameters on a device; use sgd, rmsprop, adagrad, "
                   "adam, adamw or lion");
  updates_ =
      std::make_unique<internal::Updates>(std::move(spec), std::move(trained), types, shapes);
  // Shared weights and state are made before the transport, which gets their places through
  // updates_.
  params_.is_on_device() ? memory_.place_on_device(*updates_, first_value)
                         : memory_.place({.updates = *updates_,
                                          .first_value = first_value,
                                          .host = host(),
                                          .weights = options_.weights,
                                          .trial = context(nullptr)});
  make_whole(memory_.is_shared(), memory_.shared_pieces());
  make_transport();
  if (group_.size() > 1) group_.barrier();
  watch_optimizer();
}

void Replica::settle() {
  if (!updates_ || !updates_->held()) return;
  guarded([&] { transport_->settle(); });
  updates_->stepped(transport_->used());
}

void Replica::on_ready(int param) {
  samples_->in_backward();
  if (paused_ > 0) return company().note();
  end_dropped();
  company().note();
  if (ready_[index(param)] || reduced_) {
    const Error error(
        Errc::kInvalidArgument,
        "a second backward() has reached '" + params_[index(param)].name +
            "' before step(), and peers may have read its gradient; wrap all "
            "backward() calls but the last in no_sync()" +
            (transport_->can_discard() ? "" : ", also those whose gradients zero_grad() drops"),
        {"backward", group_.rank()});
    group_.abort(error);
    throw error;
  }
  ready_[index(param)] = passed_ = true;
  stepped_ = false;
  guarded([&] {
    if (!any_ready_) {
      any_ready_ = true;
      if (updates_) backward_lr_ = lr_of(updates_->spec().rule);
      settle();
      look_at_module();
      torch::autograd::Engine::get_default_engine().queue_callback(
          [self = std::static_pointer_cast<Replica>(shared_from_this())] {
            const internal::ForCaller here(self->caller_);
            self->end_backward();
          });
    }
    // Keeps the gradient as it is now. step() finds out whether the program has changed it since.
    if (updates_) watch().gradients().note(param);
    transport_->ready(param);
  });
}

void Replica::begin_adding() {
  show_gradients();
  look_at_averages();
  averaged_ = false;  // backward() adds to them
  // Without weft's optimizer, the ranks have combined the gradients at the end of backward().
  const bool may_be_dropped = paused_ > 0 || (updates_ && transport_->can_discard());
  check_added(spent_.begin_adding(trained_params_, may_be_dropped));
}

// Gradients would lack the spent ones that one process has.
void Replica::check_added(int param) {
  if (param < 0) return;
  const std::string why =
      updates_ ? "which the last step() has used; call zero_grad() of the optimizer or of the "
                 "parallel model before backward()"
               : "which the ranks have combined already, so it would count again; call zero_grad() "
                 "before backward(), or wrap all but the last backward() in no_sync()";
  const Error error(
      Errc::kInvalidArgument,
      "backward() would add to the gradient of '" + params_[index(param)].name + "', " + why,
      {"backward", group_.rank()});
  group_.abort(error);
  throw error;
}

// Before gradients are taken from grad(): this rank has none of this step.
void Replica::drop_spent() {
  check_added(spent_.take_added(trained_params_));
  spent_.drop(trained_params_);
}

// The ranks go on without the gradients of a batch that the program has dropped. Not before they
// need each other for the next ones, since a rank may also be at its end.
void Replica::end_dropped() {
  if (!std::exchange(dropped_, false)) return;
  guarded([&] {
    settle();
    reduced_ ? transport_->drop() : transport_->discard();
    watch().note_dropped_batch();
    forget();
  });
}

// No hook tells that an optimizer of torch has stepped, so the weights do. Ranks that see another
// thing get an error (RankSettings).
void Replica::look_at_averages() {
  if (!averaged_) return;
  const bool used = watch().has_changed_trained();
  const bool dropped = !used && are_gradients_dropped();
  averaged_ = !used && !dropped;
  if (used) transport_->averages_used();
  if (!dropped) return;
  transport_->averages_dropped();
  watch().note_dropped_batch();
}

// Without weft's optimizer, it is the end of the step.
void Replica::end_backward() {
  if (updates_) return hide_gradients();
  guarded([&] {
    finish(1);
    end_module_changes();
    if (counts_sums_again()) spent_.note(trained_params_, /*any_values=*/true);
    if (options_.data_parallel.codec == "none" || host() != nullptr) return;
    averaged_ = watch().sees_steps();
    if (!averaged_) transport_->averages_used();  // as mostly
  });
}

void Replica::await_gradients() {
  if (reduced_ || stepped_) return;
  guarded([&] {
    const Shown shown(*this);
    drop_spent();
    watch().gradients().check();
    settle();
    transport_->reduce();
    reduced_ = true;
  });
}

void Replica::each_gradient(
    const std::function<void(const std::string&, const at::Tensor&)>& take) {
  await_gradients();
  WEFT_REQUIRE(reduced_, "sharded: at stage 0, read gradients before step()");
  transport_->each_sum([&](int param, const at::Tensor& sum) {
    const std::int64_t count = sum.numel(), begin = count * group_.rank() / group_.size();
    const std::int64_t end = count * (group_.rank() + 1) / group_.size();
    if (end > begin)
      take(params_[index(param)].name, sum.reshape({-1}).narrow(0, begin, end - begin));
  });
}

Sharded::Finite Replica::are_finite() {
  return guarded([&]() -> Sharded::Finite {
    const Shown shown(*this);
    drop_spent();
    watch().gradients().check();
    settle();
    passed_ = true;  // its gradients are with the transport from now on
    return {transport_->all_finite(), transport_->knows_all()};
  });
}

double Replica::grad_norm() {
  await_gradients();
  if (reduced_) norm_ = transport_->norm();
  return norm_;
}

void Replica::forget() {
  std::fill(ready_.begin(), ready_.end(), false);
  any_ready_ = passed_ = reduced_ = false;
  spent_.end_step();
  company().forget();
  watch().gradients().forget();
  if (options_.check) options_.check->clear();
}

void Replica::finish(double scale) {
  settle();
  // If every rank updates all weights, sums over many ranks are computed once instead of by each
  // rank.
  const auto& how = options_.data_parallel;
  if (memory_.is_private() && options_.weights == Weights::kPrivate && group_.size() > 2 &&
      !how.update_in_backward && !reduced_)
    transport_->reduce();
  transport_->finish(scale);
  forget();
}

void Replica::finish_whole(double scale) {
  const at::NoGradGuard guard;
  await_gradients();
  std::vector<at::Tensor> gradients(params_.trained());
  transport_->each_sum([&](int param, const at::Tensor& sum) {
    const internal::WholePiece part = memory_.piece(index(param));
    const at::Tensor mine = sum.reshape({-1}).narrow(0, part.begin, part.end - part.begin);
    gradients[index(param)] = scale == 1 && transport_->owns_sums() ? mine : mine.mul(scale);
  });
  std::vector<internal::WholePiece> pieces;
  for (std::size_t i = 0; i < params_.trained(); ++i) {
    if (!gradients[i].defined() || gradients[i].numel() == 0) continue;
    pieces.push_back(memory_.piece(i));
    pieces.back().gradient = gradients[i].const_data_ptr();
  }
  whole_->update({std::move(pieces), transport_->used()});
  transport_->finish_updated(scale);
  forget();
}

void Replica::step(double scale) {
  WEFT_REQUIRE(
      scale == 1 || !options_.data_parallel.update_in_backward,
      "step: update_in_backward does not support a scale, since weights are updated already");
  WEFT_REQUIRE(
      !options_.data_parallel.update_in_backward || !any_ready_ ||
          lr_of(updates().spec().rule) == backward_lr_,
      "step: the learning rate was changed since backward(), and update_in_backward has updated "
      "weights by the old one; set it before backward()");
  end_dropped();
  guarded([&] {
    stepped_ = false;
    const Shown shown(*this);
    drop_spent();
    const bool repeats = spent_.found();
    take_module_changes();
    if (const double most = updates().spec().max_grad_norm; most > 0) {
      const double norm = grad_norm() * std::abs(scale);
      scale *= optim::clip_factor(norm, most);
    }
    whole_ ? finish_whole(scale) : finish(scale);
    // Whether any rank had gradients is known only with all sums.
    if (repeats) transport_->settle();
    if (transport_->pending()) {
      updates_->hold();
    } else {
      const std::vector<bool>& used = transport_->used();
      WEFT_REQUIRE(!repeats || std::find(used.begin(), used.end(), true) != used.end(),
                   "step() was called again without backward() on any rank; call it once after "
                   "each backward()");
      updates_->stepped(used);
    }
    // Ranks on unlike devices round equal numbers differently.
    if (has_unlike_devices()) memory_.share_rank_0();
    end_module_changes();
    ++steps_;
    stepped_ = true;
    // Alone and without clipping, grad() is what one process would have, and backward() may add to
    // it.
    if (group_.size() > 1 || updates().spec().max_grad_norm > 0) spent_.note(trained_params_);
  });
}

void Replica::drop_own_gradients() {
  show_gradients();
  spent_.clear();
  dropped_ = dropped_ || (passed_ && transport_->can_discard());
  if (dropped_) {
    samples_->reset();
  } else if (!passed_) {
    samples_->drop();  // of no_sync() passes
    company().forget();
  }
  for (auto& param : trained_params_) param.mutable_grad().reset();
}

// Peers may read this rank's gradients until all ranks have dropped theirs.
void Replica::zero_grad() {
  WEFT_REQUIRE(!passed_ || !options_.data_parallel.update_in_backward,
               "zero_grad: update_in_backward has changed weights; call step() first");
  spent_.forget_added();
  if (passed_) await_gradients();
  show_gradients();
  if (reduced_) {
    guarded([&] { transport_->drop(); });
    samples_->reset();
  }
  forget();
  drop_own_gradients();
  stepped_ = false;
}

Replica::NamedTensors Replica::gradients() {
  const at::NoGradGuard guard;
  return guarded([&] {
    await_gradients();
    settle();
    const Shown shown(*this);
    NamedTensors all;
    for (int param = 0; param < static_cast<int>(params_.trained()); ++param) {
      if (!transport_->used()[index(param)]) continue;
      at::Tensor sum = transport_->sum_of(param);
      if (group_.rank() == 0) all.emplace_back(params_[index(param)].name, sum);
    }
    return all;
  });
}

void Replica::each_whole(const Visit& visit) {
  if (group_.rank() != 0) return;  // the others wait for rank 0 in the next step
  if (memory_.is_shared() && !is_held_changed()) {
    watch().check(true);
    // Else other ranks may be updating weights already.
    if (!options_.data_parallel.update_in_backward) check_written();
  }
  for (const auto& param : params_.all()) visit(param.name, param.tensor.detach());
  memory_.each_state(visit);
}

void Replica::take_over(const std::map<std::string, at::Tensor>& given) {
  go_home();
  memory_.take_over(given);
  end_load();
}

Replica::NamedTensors Replica::optimizer_state() {
  settle();
  NamedTensors all;
  memory_.each_state([&](const std::string& name, const at::Tensor& state) {
    all.emplace_back(name, state.clone());
  });
  state().add_steps(all);
  return all;
}

void Replica::load_optimizer_state(const NamedTensors& given) {
  const at::NoGradGuard guard;
  const std::map<std::string, at::Tensor> by_name(given.begin(), given.end());
  take_loaded();
  if (!memory_.is_shared()) compare_written();
  const NamedTensors expected = optimizer_state();
  const auto check = [&] {
    for (const auto& [name, like] : expected) {
      const auto found = by_name.find(name);
      WEFT_REQUIRE(found != by_name.end() && found->second.sizes() == like.sizes(),
                   "optimizer state has no '" + name + "' with the shape of the parameter");
    }
    WEFT_REQUIRE(by_name.size() == expected.size(),
                 "optimizer state has entries that this optimizer does not have");
  };
  comm::together(group_, check,
                 {.operation = "load_state", .failed = "cannot load its optimizer state"});
  memory_.each_state([&](const std::string& name, at::Tensor state) {
    if (memory_.writes()) state.copy_(by_name.at(name));
  });
  state().take_steps(by_name);
  end_load();  // values of weights may have been copied by hand before
}

void Replica::end_load() {
  if (group_.size() > 1) group_.barrier();
  watch().rebase(true);
  note_held();
  note_written();
}

checkpoint::Slices Replica::codec_slices() {
  settle();
  look_at_averages();
  return transport_->codec_slices();
}

bool Replica::load_codec(const checkpoint::Reader& saved) {
  averaged_ = false;
  return guarded([&] { return transport_->load_codec(saved); });
}

std::string Replica::describe() const {
  return transport_->describe() + (memory_.is_shared() ? ", optimizer state once per host" : "");
}

}  // namespace weft::engine

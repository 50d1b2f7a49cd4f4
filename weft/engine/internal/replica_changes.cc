// A replica takes over what the program has changed in the module between two steps
// (module_watch.h).
#include <ATen/ATen.h>

#include "weft/engine/internal/replica.h"

namespace weft::engine {

using internal::index;

namespace {

// Replicas add in the same order, so weights differ only by a change of the program. Devices, and
// after many steps optimizers of torch on other processors, may round differently on each rank.
constexpr double kExact = 1e-6, kRounded = 1e-3;

}  // namespace

// Begins with the weights of optimizer(). The program may have changed them since data_parallel().
void Replica::watch_optimizer() {
  watch_optimizer_settings();
  if (memory_.is_shared()) {
    watch().forbid_writing(
        "but its memory is shared by the ranks of this host, so the change counts once for each of "
        "them; use weights = private, or give it the new values by torch::load() or load_shards()",
        /*sampled=*/true);
    note_written();
  } else {
    watch().note_samples(false);  // a transport may update weights before another rank's digest
  }
}

void Replica::compare_written() {
  if (group_.size() == 1) return;
  watch().digest();
  at::Tensor changed = at::full({1}, watch().has_changed() ? 1 : 0, at::kInt);
  group_.all_reduce(changed, ReduceOp::kMax);
  if (changed.item<int>() != 0) watch().compare(group_, true, kExact);
}

// At the first gradient of a backward pass. Private weights are at home from now on, since some
// transports update them before step().
void Replica::look_at_module() {
  watch().check(true);
  if (!updates_) return;
  if (!memory_.is_shared()) return take_moved();
  WEFT_REQUIRE(
      !options_.data_parallel.update_in_backward || watch().moved(params_.trained()).empty(),
      "backward: '" + params_[index(watch().moved(params_.trained())[0])].name +
          "' has other memory than optimizer() gave it (torch::load, set_data or to), and "
          "update_in_backward has begun to update shared weights; load weights by load_shards(), "
          "or leave update_in_backward out");
}

// Copies the values of parameters that got other memory to the memory that the optimizer updates.
void Replica::take_moved() {
  const at::NoGradGuard guard;
  const std::vector<int> moved = watch().moved(params_.trained());
  if (moved.empty()) return;
  for (const int param : moved) {
    if (memory_.writes()) watch().home(param).copy_(params_[index(param)].tensor.detach());
  }
  if (memory_.is_shared()) group_.barrier();
  for (const int param : moved) watch().bring_home(param);
}

void Replica::take_loaded() {
  settle();
  if (!has_loaded(params_.trained())) return;
  if (group_.size() > 1) {
    if (!is_held_changed_anywhere()) check_written();  // take_moved() makes its values new
    watch().digest();
    watch().compare(group_, true, kExact);
  }
  take_moved();
}

// Before the update.
void Replica::take_module_changes() {
  settle();
  watch().check(false);
  watch().gradients().check();
  if (!memory_.is_shared()) return take_moved();
  const std::vector<int> moved = watch().moved(params_.trained());
  if (moved.empty()) return;
  transport_->await_peers();
  const std::string what = "step: '" + params_[index(moved[0])].name +
                           "' has other memory than optimizer() gave it (torch::load, set_data or "
                           "to), ";
  WEFT_REQUIRE(!watch().moved_late(),
               what + "since backward(); load weights before backward() or after step()");
  WEFT_REQUIRE(transport_->alike(),
               what + "and another rank's module was not changed alike; load weights on all ranks");
  check_written();  // take_moved() makes its values new
  watch().compare(group_, false, kExact);
  take_moved();
  group_.barrier();
}

void Replica::check_company() const {
  if (const auto& ranks = transport_->apart())
    throw Error(Errc::kInvalidArgument,
                internal::apart_text(*ranks, params_.model_name().parameter),
                {"step", group_.rank(), ranks->second});
}

// After the update, when all ranks' digests are known.
void Replica::end_module_changes() {
  check_company();
  const bool is_due = !memory_.is_shared() && internal::ModuleWatch::is_due(++updates_done_);
  const bool is_changed = !transport_->alike() || watch().is_odd();
  if (group_.size() > 1 && (is_due || is_changed)) {
    settle();
    const bool is_exact = !has_devices() && (updates_ || is_changed);
    watch().compare(group_, !memory_.is_shared(), is_exact ? kExact : kRounded);
  }
  watch().rebase(has_devices());
  note_held();
}

// Throws if the program has written to shared weights since the last update.
void Replica::check_written() {
  if (!memory_.is_shared()) return;
  whole_ ? whole_->check_written() : transport_->check_written();
}

// Shared weights are right as they are now.
void Replica::note_written() {
  if (!memory_.is_shared()) return;
  whole_ ? whole_->note_written() : transport_->note_written();
  group_.barrier();
}

void Replica::check_values() {
  check_written();
  if (memory_.is_shared() || group_.size() == 1) return;
  settle();
  watch().compare(group_, /*whole=*/true, has_devices() ? kRounded : kExact);
}

}  // namespace weft::engine

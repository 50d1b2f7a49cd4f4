#include "weft/engine/internal/module_watch.h"

#include <ATen/ATen.h>

#include <sstream>

#include "weft/base/error.h"
#include "weft/engine/internal/overlaps.h"
#include "weft/engine/internal/value_sums.h"

namespace weft::engine::internal {
namespace {

std::string kind_of(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.scalar_type() << tensor.sizes();
  if (!tensor.is_cpu()) text << " on " << tensor.device();
  return text.str();
}

[[noreturn]] void refuse(const std::string& what) { throw Error(Errc::kInvalidArgument, what); }

}  // namespace

ModuleWatch::ModuleWatch(const std::vector<Block>& blocks, const ParamList& params, bool buffers)
    : params_(params),
      guarded_(params.trained()),
      registered_(blocks, params.all(), buffers),
      settings_(blocks),
      gradients_(params),
      seen_(params.size()) {
  rebase(true);
}

void ModuleWatch::forbid_writing(std::string why, bool sampled, bool frozen) {
  no_writing_ = std::move(why);
  sampled_ = sampled;
  guarded_ = frozen ? params_.size() : params_.trained();
  rebase(true);
}

void ModuleWatch::note_samples(bool on) {
  sampled_ = on;
  rebase(true);
}

// Some of the parameter's sampled values have changed.
bool ModuleWatch::is_resampled(std::size_t param) const {
  return sampled_ && param < guarded_ && !is_moved(param) &&
         sample_lines(seen_[param].home, turn_) != seen_[param].sampled;
}

bool ModuleWatch::is_written(std::size_t param, bool values) const {
  return version_of(params_[param].tensor) != seen_[param].version ||
         (values && is_resampled(param));
}

bool ModuleWatch::has_changed_trained() const {
  for (std::size_t param = 0; param < params_.trained(); ++param) {
    if (is_moved(param) || is_written(param, /*values=*/true)) return true;
  }
  return false;
}

bool ModuleWatch::sees_steps() const {
  for (std::size_t param = 0; sampled_ && param < params_.trained(); ++param) {
    const at::Tensor &tensor = params_[param].tensor, &gradient = tensor.grad();
    if (!gradient.defined() || gradient.layout() != at::kStrided ||
        gradient.scalar_type() != tensor.scalar_type() || gradient.strides() != tensor.strides())
      continue;
    // The checksum of zeros is 0.
    if (sample_lines(gradient, turn_) != LineSums{}) return true;
  }
  return false;
}

bool ModuleWatch::is_moved(std::size_t param) const {
  const at::Tensor &now = params_[param].tensor, &home = seen_[param].home;
  return now.storage().unsafeGetStorageImpl() != home.storage().unsafeGetStorageImpl() ||
         now.storage_offset() != home.storage_offset() || now.strides() != home.strides();
}

void ModuleWatch::check(bool values) const {
  registered_.check();
  if (!moved(params_.size()).empty()) check_apart(params_.all());
  for (std::size_t param = 0; param < params_.size(); ++param) {
    check_kind(param);
    check_written(param, values);
  }
}

void ModuleWatch::check_frozen() const {
  for (std::size_t param = params_.trained(); param < guarded_; ++param) check_written(param, true);
}

void ModuleWatch::check_kind(std::size_t param) const {
  const at::Tensor &now = params_[param].tensor, &home = seen_[param].home;
  if (now.sizes() != home.sizes() || now.scalar_type() != home.scalar_type() ||
      now.device() != home.device())
    refuse("'" + params_[param].name + "' is " + kind_of(now) + " now, and was " + kind_of(home) +
           " when the module was made parallel; " + kMakeAgain);
  if (param >= params_.trained() && now.requires_grad())
    refuse("'" + params_[param].name +
           "' requires a gradient now, and did not when the module was made parallel, so its "
           "gradient is not combined over the ranks; " +
           kMakeAgain);
}

// torch::load() counts as a change in place too, of other memory.
void ModuleWatch::check_written(std::size_t param, bool values) const {
  if (no_writing_.empty() || param >= guarded_ || is_moved(param)) return;
  if (is_written(param, values))
    refuse("'" + params_[param].name + "' was changed in place, " + no_writing_);
}

std::vector<int> ModuleWatch::moved(std::size_t count) const {
  std::vector<int> all;
  for (std::size_t param = 0; param < count; ++param) {
    if (is_moved(param)) all.push_back(static_cast<int>(param));
  }
  return all;
}

bool ModuleWatch::moved_late() const {
  for (std::size_t param = 0; param < params_.size(); ++param) {
    if (is_moved(param) && !seen_[param].moved_reported) return true;
  }
  return false;
}

void ModuleWatch::bring_home(int param) {
  at::Tensor tensor = params_[index(param)].tensor;
  Seen& seen = seen_[index(param)];
  ++seen.homecomings;
  tensor.set_data(seen.home);
  seen.version = seen.reported = version_of(tensor);
  seen.moved = true;
}

std::uint32_t ModuleWatch::digest(GradientFacts gradients) {
  registered_.check_buffers();
  std::uint64_t hash = settings_.note(gradients);
  has_changed_ = odd_ = false;
  for (std::size_t param = 0; param < params_.size(); ++param) {
    Seen& seen = seen_[param];
    const at::Tensor& now = params_[param].tensor;
    seen.reported = version_of(now);
    seen.moved_reported = seen.moved || is_moved(param);
    const std::int64_t written = seen.reported - seen.version;
    const bool freed = param < params_.trained() && !now.requires_grad();
    odd_ = odd_ || seen.moved_reported || (written != 0 && written != seen.usual);
    has_changed_ = has_changed_ || seen.moved_reported || written != 0 || freed;
    const bool resampled = written == 0 && no_writing_.empty() && is_resampled(param);
    const auto state = static_cast<std::uint64_t>(written * 8 + (resampled ? 4 : 0) +
                                                  (seen.moved_reported ? 2 : 0) + (freed ? 1 : 0));
    hash = (hash ^ state) * 1099511628211U;
  }
  // Odd digests are odd, so that ranks with equal digests agree on whether to compare.
  const auto number = 1 + static_cast<std::uint32_t>((hash ^ (hash >> 32)) % (kDigests / 2 - 1));
  return 2 * number + (odd_ ? 1 : 0);
}

void ModuleWatch::compare(const Group& group, bool whole, double tolerance, bool with_apart) {
  const at::NoGradGuard guard;
  settings_.compare(group);  // other settings are why values differ
  ValueSums sums(params_.size());
  for (std::size_t param = 0; param < params_.size(); ++param) {
    Seen& seen = seen_[param];
    const at::Tensor& tensor = params_[param].tensor;
    const std::int64_t written = seen.reported - seen.version;
    const bool changed = seen.moved_reported || written != 0;
    sums.note(param, tensor.requires_grad(), !whole && changed);
    if ((whole || changed) && (with_apart || !params_[param].apart)) sums.add(param, tensor);
    if (written != 0) seen.usual = written;
  }
  sums.compare(group, params_.all(), tolerance);
}

void ModuleWatch::refuse_written(int first, int last) const {
  const std::string &from = params_[index(first)].name, &to = params_[index(last)].name;
  refuse((first == last ? "'" + from + "'" : "a parameter from '" + from + "' to '" + to + "'") +
         " was changed in place, " + no_writing_);
}

void ModuleWatch::rebase(bool now) {
  if (now) ++generation_;
  ++turn_;
  dropped_batches_ = 0;
  odd_ = odd_ && !now;
  for (std::size_t param = 0; param < params_.size(); ++param) {
    Seen& seen = seen_[param];
    const at::Tensor& tensor = params_[param].tensor;
    if (now) seen.reported = version_of(tensor);
    seen.version = seen.reported;
    seen.moved = !now && seen.moved && !seen.moved_reported;
    seen.moved_reported = seen.moved_reported && !now;
    if (!seen.home.defined() || is_moved(param)) seen.home = tensor.variable_data();
    if (sampled_ && param < guarded_) seen.sampled = sample_lines(seen.home, turn_);
  }
}

}  // namespace weft::engine::internal

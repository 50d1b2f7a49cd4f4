#include "weft/engine/internal/module_watch.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <sstream>

#include "weft/base/error.h"
#include "weft/engine/internal/overlaps.h"

namespace weft::engine::internal {
namespace {

// The list itself: Module::parameters() would copy it, and each name in it.
struct Parameters : torch::nn::Module {
  static const auto& of(const torch::nn::Module& module) {
    return module.*(&Parameters::parameters_);
  }
};

template <class Visit>
void each_parameter(const torch::nn::Module& module, const Visit& visit) {
  for (const auto& item : Parameters::of(module)) visit(item.value().unsafeGetTensorImpl());
  for (const auto& child : module.children()) each_parameter(*child, visit);
}

std::int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

std::string kind_of(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.scalar_type() << tensor.sizes();
  if (!tensor.is_cpu()) text << " on " << tensor.device();
  return text.str();
}

[[noreturn]] void refuse(const std::string& what) { throw Error(Errc::kInvalidArgument, what); }

constexpr const char* kMakeAgain =
    "change the module before data_parallel(), bind() or Sharded(), or make the parallel model "
    "again";

// Sums of a tensor's quarters, a sum with other factors for neighbors, which sees values that have
// changed places, and its norm.
constexpr std::int64_t kQuarters = 4, kNorm = kQuarters + 1;
void summarize(const at::Tensor& tensor, double* into) {
  const at::Tensor flat = tensor.detach().reshape({-1}).to(at::kDouble);
  for (std::int64_t i = 0; i < kQuarters; ++i) {
    const std::int64_t begin = flat.numel() * i / kQuarters,
                       end = flat.numel() * (i + 1) / kQuarters;
    into[i] = flat.narrow(0, begin, end - begin).sum().item<double>();
  }
  for (std::int64_t i = 0; flat.is_cpu() && i < flat.numel(); ++i) {
    const std::uint32_t factor = static_cast<std::uint32_t>(i) * 2654435769U;
    into[kQuarters] += flat.const_data_ptr<double>()[i] * factor * 0x1p-32;
  }
  into[kNorm] = flat.norm().item<double>();
}

bool alike(const double* a, const double* b, double tolerance) {
  const double most = tolerance * std::max(std::abs(a[kNorm]), std::abs(b[kNorm]));
  for (std::int64_t i = 0; i <= kNorm; ++i) {
    const bool same = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
    if (!same && !(std::abs(a[i] - b[i]) <= most)) return false;
  }
  return true;
}

// A number that depends on each byte of a cache line and its place.
constexpr std::size_t kLineBytes = 64;
std::uint64_t sum_of_line(const std::byte* from, std::size_t bytes) {
  std::array<std::uint64_t, kLineBytes / sizeof(std::uint64_t)> words{};
  std::memcpy(words.data(), from, bytes);
  std::uint64_t sum = 0, factor = 0x9e3779b97f4a7c15U;  // odd, as all multiples by odd numbers
  for (const std::uint64_t word : words) {
    sum += (word ^ (word >> 32)) * factor;
    factor *= 3;
  }
  return sum;
}

}  // namespace

ModuleWatch::ModuleWatch(const std::vector<Block>& blocks, const std::vector<Param>& params,
                         std::size_t trained)
    : params_(params),
      trained_(trained),
      guarded_(trained),
      settings_(blocks),
      seen_(params.size()),
      shown_(params.size()) {
  for (const Block& block : blocks) {
    modules_.emplace_back(block.name, block.module);
    each_parameter(*block.module, [&](const c10::TensorImpl* impl) { list_.push_back(impl); });
  }
  rebase(true);
}

ModuleWatch::Samples ModuleWatch::sample(const at::Tensor& tensor, std::uint64_t turn) {
  Samples samples{};
  if (tensor.layout() != at::kStrided || !tensor.is_cpu() || tensor.numel() == 0 ||
      !tensor.is_non_overlapping_and_dense())
    return samples;
  const auto* const data = static_cast<const std::byte*>(tensor.const_data_ptr());
  const std::size_t bytes = tensor.nbytes(), lines = (bytes + kLineBytes - 1) / kLineBytes,
                    turns = (lines + kSamples - 1) / kSamples;
  for (std::size_t i = 0; i < kSamples; ++i) {
    const std::size_t at = (i * turns + turn % turns) * kLineBytes;
    if (at < bytes) samples[i] = sum_of_line(data + at, std::min(kLineBytes, bytes - at));
  }
  return samples;
}

void ModuleWatch::forbid_writing(std::string why, bool sampled, bool frozen) {
  no_writing_ = std::move(why);
  sampled_ = sampled;
  guarded_ = frozen ? params_.size() : trained_;
  rebase(true);
}

void ModuleWatch::note_samples(bool on) {
  sampled_ = on;
  rebase(true);
}

// Some of the parameter's sampled values have changed.
bool ModuleWatch::is_resampled(std::size_t param) const {
  return sampled_ && param < guarded_ && !is_moved(param) &&
         sample(seen_[param].home, turn_) != seen_[param].sampled;
}

bool ModuleWatch::is_moved(std::size_t param) const {
  const at::Tensor &now = params_[param].tensor, &home = seen_[param].home;
  return now.storage().unsafeGetStorageImpl() != home.storage().unsafeGetStorageImpl() ||
         now.storage_offset() != home.storage_offset() || now.strides() != home.strides();
}

void ModuleWatch::check(bool values) const {
  std::size_t place = 0;
  bool same = true;
  for (const auto& [name, module] : modules_) {
    each_parameter(*module, [&](const c10::TensorImpl* impl) {
      same = same && place < list_.size() && list_[place] == impl;
      ++place;
    });
  }
  if (!same || place != list_.size()) check_list();
  if (!moved(params_.size()).empty()) check_apart(params_);
  for (std::size_t param = 0; param < params_.size(); ++param) {
    check_kind(param);
    check_written(param, values);
  }
}

void ModuleWatch::check_frozen() const {
  for (std::size_t param = trained_; param < guarded_; ++param) check_written(param, true);
}

// Names a parameter that came or went.
void ModuleWatch::check_list() const {
  std::set<const c10::TensorImpl*> known, found;
  for (const Param& param : params_) known.insert(param.tensor.unsafeGetTensorImpl());
  for (const auto& [block, module] : modules_) {
    for (const auto& item : module->named_parameters()) {
      const std::string name = (block.empty() ? "" : block + ".") + item.key();
      found.insert(item.value().unsafeGetTensorImpl());
      if (!known.contains(item.value().unsafeGetTensorImpl()))
        refuse("'" + name +
               "' became a parameter of the module after the module was made parallel, so its "
               "gradient is not combined over the ranks; " +
               kMakeAgain);
    }
  }
  for (const Param& param : params_) {
    if (!found.contains(param.tensor.unsafeGetTensorImpl()))
      refuse("'" + param.name + "' is no longer a parameter of the module; " + kMakeAgain);
  }
}

void ModuleWatch::check_kind(std::size_t param) const {
  const at::Tensor &now = params_[param].tensor, &home = seen_[param].home;
  if (now.sizes() != home.sizes() || now.scalar_type() != home.scalar_type() ||
      now.device() != home.device())
    refuse("'" + params_[param].name + "' is " + kind_of(now) + " now, and was " + kind_of(home) +
           " when the module was made parallel; " + kMakeAgain);
  if (param >= trained_ && now.requires_grad())
    refuse("'" + params_[param].name +
           "' requires a gradient now, and did not when the module was made parallel, so its "
           "gradient is not combined over the ranks; " +
           kMakeAgain);
}

// torch::load() counts as a change in place too, of other memory.
void ModuleWatch::check_written(std::size_t param, bool values) const {
  if (no_writing_.empty() || param >= guarded_ || is_moved(param)) return;
  if (version_of(params_[param].tensor) != seen_[param].version || (values && is_resampled(param)))
    refuse("'" + params_[param].name + "' was changed in place, " + no_writing_);
}

void ModuleWatch::shown(int param) {
  const at::Tensor& gradient = params_[index(param)].tensor.grad();
  if (gradient.defined())
    shown_[index(param)] = {gradient, version_of(gradient), sample(gradient, 0)};
}

void ModuleWatch::check_gradients() {
  const bool values = !std::exchange(gradients_checked_, true);
  for (std::size_t param = 0; param < trained_; ++param) {
    const Shown& shown = shown_[param];
    if (!shown.gradient.defined()) continue;
    const at::Tensor& now = params_[param].tensor.grad();
    if (now.is_same(shown.gradient) && version_of(now) == shown.version &&
        (!values || sample(now, 0) == shown.sampled))
      continue;
    refuse("the gradient of '" + params_[param].name +
           "' was changed between backward() and step(), but step() averages it over the ranks "
           "first; to clip, use max_grad_norm of the optimizer, and to change averages, use an "
           "optimizer of torch::optim");
  }
}

void ModuleWatch::forget_gradients() {
  for (Shown& shown : shown_) shown.gradient.reset();
  gradients_checked_ = false;
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
  std::uint64_t hash = settings_.note(gradients);
  has_changed_ = odd_ = false;
  for (std::size_t param = 0; param < params_.size(); ++param) {
    Seen& seen = seen_[param];
    const at::Tensor& now = params_[param].tensor;
    seen.reported = version_of(now);
    seen.moved_reported = seen.moved || is_moved(param);
    const std::int64_t written = seen.reported - seen.version;
    const bool freed = param < trained_ && !now.requires_grad();
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
  constexpr std::int64_t kRow = kNorm + 2;
  const auto count = static_cast<std::int64_t>(params_.size());
  at::Tensor mine = at::zeros({1, count, kRow}, at::kDouble),
             all = at::zeros({group.size(), count, kRow}, at::kDouble);
  for (std::size_t param = 0; param < params_.size(); ++param) {
    Seen& seen = seen_[param];
    const std::int64_t written = seen.reported - seen.version;
    const bool changed = seen.moved_reported || written != 0;
    double* const row = mine.data_ptr<double>() + static_cast<std::int64_t>(param) * kRow;
    row[0] = (params_[param].tensor.requires_grad() ? 1 : 0) + (!whole && changed ? 2 : 0);
    if ((whole || changed) && (with_apart || !params_[param].apart))
      summarize(params_[param].tensor, row + 1);
    if (written != 0) seen.usual = written;
  }
  group.all_gather(all, mine);
  const auto* const rows = all.const_data_ptr<double>();
  for (std::int64_t i = kRow * count; i < kRow * count * group.size(); i += kRow) {
    const double *const first = rows + i % (kRow * count), *const other = rows + i;
    if (first[0] == other[0] && alike(first + 1, other + 1, tolerance)) continue;
    const std::string name = params_[static_cast<std::size_t>(i / kRow % count)].name,
                      ranks = "rank 0 and rank " + std::to_string(i / (kRow * count));
    const bool frozen = std::fmod(first[0], 2) != std::fmod(other[0], 2);
    throw Error(Errc::kInvalidArgument,
                (frozen ? "requires_grad of '" + name + "' differs between " + ranks
                        : "the values of '" + name + "' differ between " + ranks) +
                    "; change the module, and call step() of its optimizer, alike on all ranks, or "
                    "change it before it is made parallel",
                {"step", group.rank(), static_cast<int>(i / (kRow * count))});
  }
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
    if (sampled_ && param < guarded_) seen.sampled = sample(seen.home, turn_);
  }
}

}  // namespace weft::engine::internal

// A sharded model takes over what the program has changed in the module between two steps
// (module_watch.h).
//
// Values in new memory, as after torch::load(), are taken: each rank copies its part to its masters
// (pull_moved), and the parameters get the engine's memory again. The masters then reach all ranks
// as after an update.
//
// Values written in place count only if all ranks write alike, and only to whole weights that the
// optimizer updates in place. Otherwise they are errors. How they are noticed depends on the
// memory:
//
//   shared by the ranks, updated in place   each rank compares its part with what the last update
//                                           wrote (written.h)
//   masters apart from the weights          check_copy(): the weights must equal the masters; when
//                                           a unit is released, or in steps that are due
//   whole on each rank, updated in place    compare_private(): the ranks compare a checksum of all
//                                           weights in steps that are due
//
// Order in a step: the digests of all ranks are known; the ranks compare values where digests
// differ; written values are looked for; only then loaded values are taken, which makes them the
// right ones.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "weft/engine/internal/sharded_model.h"

namespace weft::engine {
namespace {

// Of ranks that hold the same values.
constexpr double kTolerance = 1e-6;

// The optimizer keeps another copy of the weights.
bool is_apart(const internal::Unit& unit) {
  return unit.master.storage().unsafeGetStorageImpl() != unit.flat.storage().unsafeGetStorageImpl();
}

// Equal values, or both are not numbers.
bool are_equal(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(a, b) || at::allclose(a, b, /*rtol=*/0, /*atol=*/0, /*equal_nan=*/true);
}

// A number that depends on each byte of a tensor and on its place. Reads it once.
std::uint64_t bits_of_all(const at::Tensor& flat, std::int64_t place) {
  constexpr std::int64_t kChunk = 1 << 20;
  const auto bytes = static_cast<std::int64_t>(flat.nbytes()),
             chunks = (bytes + kChunk - 1) / kChunk;
  const auto* const data = static_cast<const std::byte*>(flat.const_data_ptr());
  std::vector<std::uint64_t> bits(static_cast<std::size_t>(chunks));
  at::parallel_for(0, chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t chunk = begin; chunk < end; ++chunk) {
      bits[static_cast<std::size_t>(chunk)] = internal::bits_of(
          data + chunk * kChunk, static_cast<std::size_t>(std::min(kChunk, bytes - chunk * kChunk)),
          place + chunk);
    }
  });
  return std::accumulate(bits.begin(), bits.end(), std::uint64_t{0});
}

}  // namespace

void ShardedModel::watch_module() {
  begin_watch();
  watch_optimizer_settings();
  const bool apart = std::any_of(units().begin(), units().end(), [](const internal::Unit& unit) {
    return unit.trainable && is_apart(unit);
  });
  if (shared_) {
    watch().forbid_writing(
        "but its memory is shared by the ranks of this host, so the change counts once for each of "
        "them; use ZeRO-1 or ZeRO-2 with weights = private, or give it the new values by "
        "torch::load() or load_shards()",
        /*sampled=*/true, /*frozen=*/true);
  } else if (apart) {
    watch().forbid_writing(
        "but the optimizer keeps another copy of it, so the change would be lost; give it the new "
        "values by torch::load() or load_shards()",
        /*sampled=*/!passes_);
  } else if (!passes_) {
    watch().note_samples();  // a rank's change would count for its shard only
  }
}

// The optimizer keeps a copy of the weights `flat` of a unit. Throws if the program has written to
// these weights since the last update. Each rank looks at its part.
void ShardedModel::check_copy(const internal::Unit& unit, const at::Tensor& flat) const {
  const at::NoGradGuard guard;
  const at::Tensor mine = flat.narrow(0, group_.rank() * unit.shard, unit.shard),
                   right = unit.master.to(unit.type);
  if (are_equal(mine, right)) return;
  for (std::size_t place = 0; place < unit.params.size(); ++place) {
    const int param = unit.params[place];
    const internal::Piece piece = internal::piece_of(
        unit, place, params_[internal::index(param)].tensor.numel(), group_.rank());
    const std::int64_t count = piece.end - piece.begin;
    if (count <= 0 || watch_->is_moved(internal::index(param))) continue;
    if (!are_equal(mine.narrow(0, piece.at, count), right.narrow(0, piece.at, count)))
      watch_->refuse_written(param, param);
  }
}

void ShardedModel::check_copies() {
  if (passes_ || is_held_changed()) return;
  for (const internal::Unit& unit : units()) {
    if (unit.trainable && is_apart(unit)) check_copy(unit, unit.flat);
  }
}

std::uint64_t ShardedModel::bits_of_weights(bool with_apart) const {
  std::uint64_t bits = 0;
  std::int64_t place = 0;
  for (const internal::Unit& unit : units()) {
    if (unit.trainable && (with_apart || !unit.apart)) bits += bits_of_all(unit.flat, place);
    place += unit.bytes();
  }
  return bits;
}

// Each rank has all weights, and updates its part. The parts of the others then take the place of
// what the program has written there. So the ranks compare all values before some updates: one
// pass over them. If some differ, the differences may still be those of rounding.
void ShardedModel::compare_private() {
  if (shared_ || passes_) return;
  const auto compare = [&](const Group& group, bool with_apart) {
    if (group.size() == 1) return;
    const auto bits = static_cast<std::int64_t>(bits_of_weights(with_apart) >> 1);
    at::Tensor most = at::tensor({bits, -bits}, at::kLong);
    group.all_reduce(most, ReduceOp::kMax);
    if (most[0].item<std::int64_t>() != -most[1].item<std::int64_t>())
      watch().compare(group, /*whole=*/true, kTolerance, with_apart);
  };
  compare(group_, true);
  if (options_.replicas) compare(*options_.replicas, false);
}

// Throws if the program has written to this rank's part of shared weights since the last update.
void ShardedModel::check_written() {
  watch().check_frozen();
  check_copies();
  if (is_whole_once()) look_at_whole(pieces(), /*note=*/false);
  for (const internal::Unit& unit : units()) {
    if (!is_written_once(unit)) continue;
    internal::Written last = unit.written;
    end_written(unit, kept(unit), last);
  }
}

// Shared weights are right as they are now. Each rank looks at its part.
void ShardedModel::note_written() {
  if (is_whole_once()) look_at_whole(pieces(), /*note=*/true);
  for (internal::Unit& unit : units()) {
    if (!is_written_once(unit)) continue;
    unit.written = {};
    end_written(unit, kept(unit), unit.written);
  }
}

// All weights exist once for all ranks, and the rule looks at them.
bool ShardedModel::is_whole_once() const {
  return whole_ && shared_ &&
         std::none_of(units().begin(), units().end(),
                      [](const internal::Unit& unit) { return unit.trainable && is_apart(unit); });
}

// Weights that exist once for all ranks, and that the optimizer updates in place, if at all.
bool ShardedModel::is_written_once(const internal::Unit& unit) const {
  return shared_ && !is_apart(unit) && !(whole_ && unit.trainable);
}

// This rank's part, as it is.
internal::WrittenCheck ShardedModel::kept(const internal::Unit& unit) {
  internal::WrittenCheck check(true);
  if (!unit.trainable) check.stays(unit.master.const_data_ptr(), unit.master.nbytes(), 0);
  for (std::size_t place = 0; unit.trainable && place < unit.params.size(); ++place) {
    const int param = unit.params[place];
    const auto piece = internal::piece_of(
        unit, place, params_[internal::index(param)].tensor.numel(), group_.rank());
    if (piece.end > piece.begin) update_piece(param, piece, nullptr, check);
  }
  return check;
}

// Of this rank, of all trained parameters, without gradients.
std::vector<internal::WholePiece> ShardedModel::pieces() const {
  std::vector<internal::WholePiece> all;
  for (const internal::Unit& unit : units()) {
    for (std::size_t place = 0; unit.trainable && place < unit.params.size(); ++place) {
      const int param = unit.params[place];
      const auto piece = internal::piece_of(
          unit, place, params_[internal::index(param)].tensor.numel(), group_.rank());
      if (piece.end > piece.begin) all.push_back({param, piece.begin, piece.end});
    }
  }
  return all;
}

void ShardedModel::end_written(const internal::Unit& unit, const internal::WrittenCheck& check,
                               internal::Written& written) {
  std::uint64_t generation = 0;
  for (const int param : unit.params) generation += watch().generation(param);
  if (!check.end(written, generation))
    watch().refuse_written(unit.params.front(), unit.params.back());
}

// Private weights that are whole on each rank can be compared.
void ShardedModel::check_values() {
  check_written();
  if (shared_ || passes_ || group_.size() == 1) return;
  watch().compare(group_, /*whole=*/true, kTolerance);
}

// Copies this rank's part of parameters that got other memory to its masters. Not collective.
void ShardedModel::pull_moved(const Pulled& taken) {
  const at::NoGradGuard guard;
  for (internal::Unit& unit : units()) {
    for (std::size_t place = 0; place < unit.params.size(); ++place) {
      const std::size_t param = internal::index(unit.params[place]);
      const at::Tensor& now = params_[param].tensor;
      const auto known = taken.find(param);
      const bool is_taken =
          known != taken.end() && known->second.second == now._version() &&
          known->second.first.unsafeGetStorageImpl() == now.storage().unsafeGetStorageImpl();
      if (!watch().is_moved(param) || is_taken) continue;
      const at::Tensor whole = params_[param].tensor.detach().reshape({-1});
      const internal::Piece piece = internal::piece_of(unit, place, whole.numel(), group_.rank());
      if (piece.end <= piece.begin) continue;
      unit.written = {};
      unit.master.narrow(0, piece.at, piece.end - piece.begin)
          .copy_(whole.narrow(0, piece.begin, piece.end - piece.begin));
    }
  }
}

// Throws if the ranks that have the same parameters have changed them in other ways.
void ShardedModel::compare_changes(bool whole) {
  if (group_.size() > 1) watch().compare(group_, whole, kTolerance);
  if (options_.replicas && options_.replicas->size() > 1)
    watch().compare(*options_.replicas, whole, kTolerance, /*with_apart=*/false);
}

// The caller publishes the masters then.
void ShardedModel::take_loaded() {
  watch().check(false);  // held() values are the masters', so they are no changes of the module
  const Pulled pulled = std::exchange(pulled_, {});
  if (!has_loaded(params_.size())) return;
  if (is_held_changed_anywhere()) publish(true);  // so that the ranks have equal values again
  watch().digest();
  compare_changes(false);
  pull_moved(pulled);
  if (shared_) group_.barrier();
  go_home();
}

// All gradients have been summed, so the ranks know each other's digests.
void ShardedModel::take_module_changes() {
  watch().check(false);
  const bool is_due = internal::ModuleWatch::is_due(steps_ + 1);
  if (is_due) check_copies();
  const std::vector<int> moved = watch().moved(params_.size());
  WEFT_REQUIRE(moved.empty() || !watch().moved_late(),
               "step: '" + params_[internal::index(moved[0])].name +
                   "' has other memory (torch::load, set_data or to) since backward(); load "
                   "weights before backward() or after step()");
  const bool whole = !shared_ && !passes_;  // each rank has all parameters
  if (!reducer_->alike() || watch().is_odd()) compare_changes(whole);
  if (!moved.empty()) {
    // Before pull_moved(), since taken values count as new ones and hide what was written before.
    check_written();
    pull_moved();
    for (const int param : moved) {
      if (!shared_ && !passes_) watch().home(param).copy_(params_[internal::index(param)].tensor);
    }
    if (shared_) group_.barrier();
    for (const int param : moved) watch().bring_home(param);
    pulled_.clear();
  }
  if (is_due) compare_private();
}

}  // namespace weft::engine

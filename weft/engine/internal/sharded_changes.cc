// Values in new memory, as after torch::load(), are taken: each rank copies its part to its masters
// (pull), and the parameters get the engine's memory again. The masters then reach all ranks as
// after an update.
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
#include "weft/engine/internal/sharded_changes.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <numeric>

namespace weft::engine::internal {
namespace {

// Of ranks that hold the same values.
constexpr double kTolerance = 1e-6;

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
      bits[static_cast<std::size_t>(chunk)] = bits_of(
          data + chunk * kChunk, static_cast<std::size_t>(std::min(kChunk, bytes - chunk * kChunk)),
          place + chunk);
    }
  });
  return std::accumulate(bits.begin(), bits.end(), std::uint64_t{0});
}

}  // namespace

ShardedChanges::ShardedChanges(Context of) : of_(std::move(of)) {
  const std::vector<Unit>& units = of_.memory.units();
  const bool has_copies = std::any_of(units.begin(), units.end(), [](const Unit& unit) {
    return unit.trainable && unit.has_copy();
  });
  if (of_.memory.is_shared()) {
    of_.watch.forbid_writing(
        "but its memory is shared by the ranks of this host, so the change counts once for each of "
        "them; use ZeRO-1 or ZeRO-2 with weights = private, or give it the new values by "
        "torch::load() or load_shards()",
        /*sampled=*/true, /*frozen=*/true);
  } else if (has_copies) {
    of_.watch.forbid_writing(
        "but the optimizer keeps another copy of it, so the change would be lost; give it the new "
        "values by torch::load() or load_shards()",
        /*sampled=*/!of_.memory.is_gathered());
  } else if (!of_.memory.is_gathered()) {
    of_.watch.note_samples();  // a rank's change would count for its shard only
  }
}

// All gradients have been summed, so the ranks know each other's digests.
void ShardedChanges::take(std::int64_t step, bool alike) {
  of_.watch.check(false);
  const bool is_due = ModuleWatch::is_due(step);
  if (is_due) check_copies();
  const std::vector<int> moved = of_.watch.moved(of_.params.size());
  WEFT_REQUIRE(moved.empty() || !of_.watch.moved_late(),
               "step: '" + of_.params[index(moved[0])].name +
                   "' has other memory (torch::load, set_data or to) since backward(); load "
                   "weights before backward() or after step()");
  const bool whole = of_.memory.is_whole_on_each_rank();
  if (!alike || of_.watch.is_odd()) compare_changes(whole);
  if (!moved.empty()) {
    // Before pull(), since taken values count as new ones and hide what was written before.
    check_written();
    pull();
    for (const int param : moved) {
      if (whole) of_.watch.home(param).copy_(of_.params[index(param)].tensor);
    }
    if (of_.memory.is_shared()) of_.group.barrier();
    for (const int param : moved) of_.watch.bring_home(param);
    forget_pulled();
  }
  if (is_due) compare_private();
}

void ShardedChanges::take_loaded() {
  const Pulled pulled = std::exchange(pulled_, {});
  of_.watch.digest();
  compare_changes(/*whole=*/false);
  pull_except(pulled);
  if (of_.memory.is_shared()) of_.group.barrier();
}

void ShardedChanges::pull() { pull_except({}); }

void ShardedChanges::pull_for_held() {
  pull();
  for (const int param : of_.watch.moved(of_.params.size())) {
    const at::Tensor& tensor = of_.params[index(param)].tensor;
    pulled_[index(param)] = {tensor.storage(), tensor._version()};
  }
}

void ShardedChanges::pull_except(const Pulled& pulled) {
  const at::NoGradGuard guard;
  const std::vector<Unit>& units = of_.memory.units();
  for (std::size_t i = 0; i < units.size(); ++i) {
    for (const Piece& piece : pieces_of(units[i], of_.params, of_.group.rank())) {
      const std::size_t param = index(piece.param);
      const at::Tensor& now = of_.params[param].tensor;
      const auto known = pulled.find(param);
      const bool is_known =
          known != pulled.end() && known->second.second == now._version() &&
          known->second.first.unsafeGetStorageImpl() == now.storage().unsafeGetStorageImpl();
      if (!of_.watch.is_moved(param) || is_known) continue;
      of_.updates.forget_written(i);
      piece.of(units[i].master)
          .copy_(now.detach().reshape({-1}).narrow(0, piece.begin, piece.count()));
    }
  }
}

void ShardedChanges::check_written() {
  of_.watch.check_frozen();
  check_copies();
  of_.updates.check_written();
}

void ShardedChanges::check_values() {
  check_written();
  if (!of_.memory.is_whole_on_each_rank() || of_.group.size() == 1) return;
  of_.watch.compare(of_.group, /*whole=*/true, kTolerance);
}

// Each rank looks at its part.
void ShardedChanges::check_copy(const Unit& unit, const at::Tensor& whole) const {
  const at::NoGradGuard guard;
  const at::Tensor mine = unit.shard_of(whole, of_.group.rank()), right = unit.master.to(unit.type);
  if (are_equal(mine, right)) return;
  for (const Piece& piece : pieces_of(unit, of_.params, of_.group.rank())) {
    if (of_.watch.is_moved(index(piece.param))) continue;
    if (!are_equal(piece.of(mine), piece.of(right)))
      of_.watch.refuse_written(piece.param, piece.param);
  }
}

void ShardedChanges::check_copies() const {
  if (of_.memory.is_gathered() || of_.is_held_changed()) return;
  for (const Unit& unit : of_.memory.units()) {
    if (unit.trainable && unit.has_copy()) check_copy(unit, unit.flat);
  }
}

// Each rank has all weights, and updates its part. The parts of the others then take the place of
// what the program has written there. So the ranks compare all values before some updates: one
// pass over them. If some differ, the differences may still be those of rounding.
void ShardedChanges::compare_private() {
  if (!of_.memory.is_whole_on_each_rank()) return;
  const auto compare = [&](const Group& group, bool with_apart) {
    if (group.size() == 1) return;
    const auto bits = static_cast<std::int64_t>(bits_of_weights(with_apart) >> 1);
    at::Tensor most = at::tensor({bits, -bits}, at::kLong);
    group.all_reduce(most, ReduceOp::kMax);
    if (most[0].item<std::int64_t>() != -most[1].item<std::int64_t>())
      of_.watch.compare(group, /*whole=*/true, kTolerance, with_apart);
  };
  compare(of_.group, true);
  if (of_.replicas) compare(*of_.replicas, false);
}

std::uint64_t ShardedChanges::bits_of_weights(bool with_apart) const {
  std::uint64_t bits = 0;
  std::int64_t place = 0;
  for (const Unit& unit : of_.memory.units()) {
    if (unit.trainable && (with_apart || !unit.apart)) bits += bits_of_all(unit.flat, place);
    place += unit.bytes();
  }
  return bits;
}

// Throws if the ranks that have the same parameters have changed them in other ways.
void ShardedChanges::compare_changes(bool whole) {
  if (of_.group.size() > 1) of_.watch.compare(of_.group, whole, kTolerance);
  if (of_.replicas && of_.replicas->size() > 1)
    of_.watch.compare(*of_.replicas, whole, kTolerance, /*with_apart=*/false);
}

}  // namespace weft::engine::internal

// An entry (a unit for one of its blocks) goes through a pass in this order:
//
//   not issued ─ issue() ─► reserved ─ enter() of its block ─► in use ─ release() ─► done
//                              └────── end() of the pass: nobody used it ──────────► done
//
// Each entry is one collective, also if the unit is gathered already. Ranks may run different
// blocks, so the number of collectives must not depend on the units that a rank holds. The first
// gather of a unit fills its memory. Later ones go to spares_, which keep their memory until
// drain().
//
// Order of collectives in a group: at the start of a pass, one number of each rank (order_); then
// gathers in the order of entries, up to `prefetch` blocks ahead. check_peers() reads the numbers
// before this rank waits for a gather. So ranks in different passes get an error that says so.
//
// Memory: a gather reads the masters themselves if they have the unit's type. So drain() must come
// before an update. A unit is gathered while its place has holds > 0. Each entry that is reserved
// or in use is one hold.
//
// Threads: one thread calls it, in forward and from the hooks of backward(). There is no lock.
#include "weft/engine/internal/parameter_gathers.h"

#include <ATen/ATen.h>

#include <limits>

#include "weft/engine/internal/index.h"

namespace weft::engine::internal {
namespace {

// Above all blocks: the gradients of none are known to be done.
constexpr int kNone = std::numeric_limits<int>::max();

}  // namespace

ParameterGathers::ParameterGathers(Group group, std::vector<Unit>& units, int prefetch,
                                   Meter& meter)
    : group_(std::move(group)),
      units_(units),
      prefetch_(prefetch),
      meter_(meter),
      places_(units.size()),
      order_(group_) {
  int blocks = 0;
  for (const Unit& unit : units_) blocks = std::max(blocks, unit.blocks.back() + 1);
  by_block_.resize(index(blocks));
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
    for (const int block : units_[index(unit)].blocks) by_block_[index(block)].push_back(unit);
  }
  for (int block = 0; block < blocks; ++block) {
    for (const int unit : units_of(block)) entries_.push_back({block, unit});
  }
}

ParameterGathers::Entry& ParameterGathers::at(std::size_t position) {
  return entries_[direction_ == Direction::kForward ? position : entries_.size() - 1 - position];
}
const ParameterGathers::Entry& ParameterGathers::at(std::size_t position) const {
  return const_cast<ParameterGathers*>(this)->at(position);
}

// The first position after the entries of a block and of the `ahead` following blocks.
std::size_t ParameterGathers::end_of(int block, int ahead) const {
  std::size_t position = 0;
  while (at(position).block != block) ++position;
  int last = block;
  for (; position < entries_.size(); ++position) {
    if (at(position).block == last) continue;
    if (ahead-- == 0) break;
    last = at(position).block;
  }
  return position;
}

bool ParameterGathers::can_go_on(int block, Direction direction) const {
  if (!under_way_ || direction != direction_) return false;
  for (std::size_t position = 0; position < issued_; ++position) {
    // A block that runs twice needs its unit a second time, which no entry of this pass provides.
    if (at(position).block == block && !at(position).reserved) return false;
  }
  return true;
}

void ParameterGathers::enter(int block, Direction direction) {
  if (units_of(block).empty()) return;
  if (!can_go_on(block, direction)) {
    begin(direction);
    if (direction == Direction::kForward && at::GradMode::is_enabled()) order_.with_gradients();
  }
  if (direction == Direction::kForward) order_.run(block);
  for (const std::size_t end = end_of(block, prefetch_); issued_ < end;) issue();
  for (Entry& entry : entries_) {
    if (entry.block == block) entry.reserved = false;
  }
  // Gradients of higher blocks leave before this rank waits for a gather (parameter_gathers.h).
  pass(order_.mine_in_order() ? block : kNone);
  for (const int unit : units_of(block)) await(unit);
}

void ParameterGathers::pass(int block) {
  if (direction_ != Direction::kBackward) return;
  order_.check_peers();
  if (passing_) passing_(block);
}

void ParameterGathers::begin(Direction direction) {
  end(false);
  direction_ = direction;
  under_way_ = true;
  issued_ = 0;
  order_.begin(direction == Direction::kBackward);
}

// Waits for unused gathers one by one, so that they need the memory of a single one.
void ParameterGathers::end(bool all_done) {
  if (!under_way_) return;
  while (issued_ < entries_.size()) {
    issue();
    Entry& entry = at(issued_ - 1);
    entry.reserved = false;
    pass(all_done ? entry.block : kNone);
    release(entry.unit);
    drain();
  }
  pass(all_done ? -1 : kNone);
  for (Entry& entry : entries_) {
    if (std::exchange(entry.reserved, false)) release(entry.unit);
  }
  order_.check_peers();
  under_way_ = false;
}

void ParameterGathers::finish(Direction direction, bool whole) {
  if (entries_.empty()) return;
  if (whole) {
    begin(direction);
    if (direction == Direction::kForward) order_.with_gradients();
  }
  if (under_way_ && direction_ == direction) end(true);
}

void ParameterGathers::issue() {
  Entry& entry = at(issued_++);
  entry.reserved = true;
  Place& place = places_[index(entry.unit)];
  Gather gather = this->gather(units_[index(entry.unit)]);
  if (place.holds++ == 0) {
    place.gather = std::move(gather);
  } else {
    spares_.push_back(std::move(gather));
  }
}

ParameterGathers::Gather ParameterGathers::gather(const Unit& unit) {
  Gather gather;
  gather.part = unit.master.to(unit.type);
  gather.whole = at::empty({unit.elements}, gather.part.options());
  meter_.add(meter_.parameters, unit.bytes());
  gather.work = group_.all_gather_async(gather.whole, gather.part);
  return gather;
}

void ParameterGathers::await(int unit) {
  order_.check_peers();
  Place& place = places_[index(unit)];
  if (!place.gather.work) return;
  place.gather.work->wait();
  place.buffer = std::move(place.gather.whole);
  place.gather = {};
  put_below(units_[index(unit)], place.buffer);
}

void ParameterGathers::release(int unit) {
  Place& place = places_[index(unit)];
  WEFT_CHECK(place.holds > 0, "release() of a unit that is not held");
  if (--place.holds > 0) return;
  if (place.gather.work) {
    // Never awaited: the collective still writes into this memory, so it stays until drain().
    spares_.push_back(std::exchange(place.gather, {}));
    return;
  }
  if (releasing_) releasing_(units_[index(unit)], place.buffer);
  put_below(units_[index(unit)], {});
  place.buffer.reset();
  meter_.add(meter_.parameters, -units_[index(unit)].bytes());
}

void ParameterGathers::drain() {
  while (!spares_.empty()) {
    spares_.back().work->wait();
    meter_.add(meter_.parameters, -static_cast<std::int64_t>(spares_.back().whole.nbytes()));
    spares_.pop_back();
  }
}

}  // namespace weft::engine::internal

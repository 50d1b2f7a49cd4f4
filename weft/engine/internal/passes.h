// The gathers of stage 3, in one order on all ranks: forward passes gather the blocks' units in
// ascending order, backward passes in descending order, whatever a rank runs. See sharded.h.
//
// Gradients leave in another group, in which a rank may wait for its peers while they wait for a
// gather here. That cannot close a circle where each rank's backward comes to the blocks in
// descending order, and lets go of the gradients of all blocks above before it waits for the next
// gather: the rank that has let go of fewest then finds everything that it waits for. A backward
// has that order where the forward ran blocks in ascending order, since autograd runs what was made
// later first. Ranks tell each other when they begin the pass; where one has not, nobody waits for
// gradients before the end of backward.
//
// A gather is an entry of a pass. enter() issues all entries up to those of its block, and
// `prefetch` blocks more. What has arrived and was not used yet is reserved until the pass ends; a
// block that comes again after it has let go begins another pass.
#pragma once

#include <functional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "weft/comm/group.h"
#include "weft/engine/internal/unit.h"

namespace weft::parallel::internal {

class Passes {
 public:
  enum class Direction { kForward, kBackward };

  // `units` and `meter` outlive it. Blocks without parameters have no entries.
  Passes(Group group, std::vector<Unit>& units, int prefetch, Meter& meter);
  // Called in backward passes, before this rank waits for a gather: no gradient of blocks above
  // `block` is still to come.
  void on_passing(std::function<void(int block)> passing) { passing_ = std::move(passing); }
  // In a backward pass: all ranks have begun it with a forward in ascending order behind them.
  bool in_order() const { return in_order_; }

  // Returns when the block's units are in place. They stay until let_go() of each.
  void enter(int block, Direction direction);
  void let_go(int unit);
  // Takes part in what is left of the pass, if one is under way in this direction, or (`whole`) in
  // all of one.
  void finish(Direction direction, bool whole = false);
  // No peer reads this rank's masters any more.
  void drain();

  const std::vector<int>& units_of(int block) const {
    static const std::vector<int> none;
    return static_cast<std::size_t>(block) < by_block_.size()
               ? by_block_[static_cast<std::size_t>(block)]
               : none;
  }

 private:
  struct Entry {
    int block, unit;
    bool reserved = false;
  };
  // A gather under way, or done and not looked at yet.
  struct Gather {
    Group::Work work;  // null: none
    at::Tensor whole, part;
  };
  struct Place {
    int holds = 0;
    Gather gather;
    at::Tensor buffer;  // what lies below the unit, once the gather is complete
  };

  bool can_go_on(int block, Direction direction) const;
  void begin(Direction direction);
  void end();
  void issue();
  Gather gather(const Unit& unit);
  void await(int unit);
  void check_peers();
  void pass(int block);
  Entry& at(std::size_t position);
  const Entry& at(std::size_t position) const;
  std::size_t end_of(int block, int ahead) const;

  const Group group_;
  std::vector<Unit>& units_;
  const int prefetch_;
  Meter& meter_;
  std::vector<std::vector<int>> by_block_;
  std::vector<Entry> entries_;  // ascending
  std::vector<Place> places_;   // by unit
  std::vector<Gather> spares_;  // of units that were there already, or that nobody wants any more
  bool under_way_ = false;
  Direction direction_ = Direction::kForward;
  std::size_t issued_ = 0;  // entries of this pass
  std::int64_t passes_ = 0;
  std::function<void(int)> passing_;
  int last_ = -1;          // the block of this forward pass that was run last
  int forwards_ = 0;       // forward passes with gradients since the last backward pass
  bool ascending_ = true;  // their blocks
  bool mine_in_order_ = true, in_order_ = true;
  Gather heads_;  // which pass each rank has begun
};

}  // namespace weft::parallel::internal

// The gathers of stage 3, in the same order on all ranks: forward passes gather the units of the
// blocks in ascending order, backward passes in descending order, whichever blocks a rank runs. See
// sharded.h.
//
// Gradients use another group, in which a rank may wait for its peers while they wait for a gather
// here. This cannot deadlock under two conditions: the backward of each rank reaches the blocks in
// descending order, and it sends the gradients of all higher blocks before it waits for the next
// gather. Then the rank that has sent the fewest gradients always finds everything that it waits
// for. A backward has this order if the forward ran blocks in ascending order, since autograd first
// runs the nodes that were made last. Ranks tell each other at the start of a pass whether this
// holds (pass_order.h). If it does not hold on one rank, no rank waits for gradients before the end
// of backward.
//
// A gather is an entry of a pass. enter() issues all entries up to those of its block and of
// `prefetch` more blocks. Data that has arrived but was not used is reserved until the pass ends. A
// block that runs again after release() begins another pass. So a backward() through the outputs of
// several forward passes has several passes, and gradients leave at the end of the last one.
#pragma once

#include <functional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "weft/comm/group.h"
#include "weft/engine/internal/pass_order.h"
#include "weft/engine/internal/unit.h"

namespace weft::engine::internal {

class ParameterGathers {
 public:
  enum class Direction { kForward, kBackward };

  // `units` and `meter` outlive it. Blocks without parameters have no entries.
  ParameterGathers(Group group, std::vector<Unit>& units, int prefetch, Meter& meter);
  // Called in backward passes before this rank waits for a gather. It means that all gradients of
  // blocks above `block` are done.
  void on_passing(std::function<void(int block)> passing) { passing_ = std::move(passing); }
  // Called before the memory of a gathered unit goes.
  void on_release(std::function<void(const Unit& unit, const at::Tensor& whole)> releasing) {
    releasing_ = std::move(releasing);
  }
  // In a backward pass: true if the last forward of all ranks was in ascending order.
  bool in_order() const { return order_.in_order(); }

  // Returns when the units of the block are gathered. Each stays until its release().
  void enter(int block, Direction direction);
  void release(int unit);
  // Takes part in the rest of the current pass in this direction or, with `whole`, in a whole pass.
  void finish(Direction direction, bool whole = false);
  // Returns when no peer reads this rank's masters any more.
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
  // A gather in progress, or complete and not used yet.
  struct Gather {
    Group::Work work;  // null: none
    at::Tensor whole, part;
  };
  struct Place {
    int holds = 0;
    Gather gather;
    at::Tensor buffer;  // the unit's memory once the gather is complete
  };

  bool can_go_on(int block, Direction direction) const;
  void begin(Direction direction);
  // `all_done`: no more gradients will come, as at the end of backward().
  void end(bool all_done);
  void issue();
  Gather gather(const Unit& unit);
  void await(int unit);
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
  std::vector<Gather> spares_;  // of units that were present already or are no longer needed
  bool under_way_ = false;
  Direction direction_ = Direction::kForward;
  std::size_t issued_ = 0;  // number of entries issued in this pass
  PassOrder order_;
  std::function<void(int)> passing_;
  std::function<void(const Unit&, const at::Tensor&)> releasing_;
};

}  // namespace weft::engine::internal

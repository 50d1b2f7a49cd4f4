// Gradients on their way to the shards, units in descending order on all ranks. Where ranks read
// each other's memory they are summed where autograd left them (in_place.h); else copied into their
// unit's flat buffer, dropped, and reduce-scattered when the unit is complete.
#pragma once

#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "weft/engine/internal/in_place.h"
#include "weft/engine/internal/unit.h"
#include "weft/engine/sharded.h"

namespace weft::parallel::internal {

class Gradients {
 public:
  struct Subject {
    Group group;
    std::vector<Param>& params;
    std::vector<Unit>& units;
    const ShardedOptions& options;
    Meter& meter;
    const double& samples;  // of this rank since gradients left last
  };
  // Collective.
  explicit Gradients(Subject subject);

  // The gradient of `param` lies in its grad(). `travels`: it leaves now, or as soon as it is its
  // unit's turn; else it stays. Gives the unit where all of its parameters have now had theirs in
  // this backward, -1 otherwise.
  int ready(int param, bool travels);
  // What of blocks above `block` has not come is not to come: it leaves, missing gradients as
  // zeros.
  void passed(int block);
  // False: nothing that backward calls waits for peers, however many buffers that takes.
  void may_wait(bool may) { may_wait_ = may; }
  // The end of a backward. With `travels` all that has not left does, missing gradients as zeros.
  void finish(bool travels);
  // Waits for what has left and adds it to the units' shards.
  void settle();
  // Drops everything.
  void clear();

  // By parameter: some rank has had a gradient since clear(). After settle().
  const std::vector<bool>& used() const { return used_; }
  bool under_way() const { return !in_flight_.empty() || report_.defined(); }
  // Sums over replicas so far; a codec's steps.
  std::int64_t& codec_steps() { return codec_steps_; }

 private:
  struct Flight {
    int unit;
    at::Tensor wire, shard;
    Group::Work work;      // none in place, and when it has landed
    bool is_held = false;  // in place: peers may still read what is here
  };

  at::Tensor& wire_of(int unit);
  double weight() const;
  void take(int param);
  void zero_rest(int unit);
  void launch(int unit);
  void land(Flight& flight);
  void release(Flight& flight);
  void land_earlier();
  void pass_on();
  void sum_over_replicas();

  const Subject subject_;
  std::int64_t codec_steps_ = 0;
  std::vector<int> unit_of_, place_of_;  // by parameter
  std::vector<int> missing_;             // by unit: parameters that this backward has not reached
  std::unique_ptr<InPlace> in_place_;    // null: by wires
  bool began_ = false;                   // in place: a round, of which units have been published
  std::vector<std::int64_t> held_;       // by unit, in place: bytes
  std::vector<at::Tensor> wires_;        // by unit: being filled
  int next_ = 0;                         // the unit to leave next; -1: none
  std::vector<Flight> in_flight_;        // in the order in which they left
  std::size_t passed_on_ = 0;            // of them, to the replicas
  // Gradients are weighted by parts of a number that all ranks know, so that sums of narrow types
  // neither overflow nor vanish: the power of two next to the samples of the backward before, so
  // that no bit of the result follows from it. settle() divides by those that there were.
  double reference_;
  bool may_wait_ = true;
  std::vector<std::int64_t> kept_;  // by parameter: bytes of a gradient that stays for now
  std::vector<bool> mine_, used_;
  at::Tensor report_;  // samples, then for each parameter on how many ranks it has a gradient
  Group::Work report_work_;
};

}  // namespace weft::parallel::internal

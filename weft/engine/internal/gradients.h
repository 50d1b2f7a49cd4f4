// Transfers gradients to their shards, unit by unit in descending order on all ranks. If ranks read
// each other's memory, gradients are summed where autograd left them (in_place.h). Otherwise they
// are copied into the flat buffer of their unit, freed, and reduce-scattered when the unit is
// complete. Shards are then summed over the replicas (replica_sums.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "weft/engine/internal/company.h"
#include "weft/engine/internal/gradient_report.h"
#include "weft/engine/internal/in_place.h"
#include "weft/engine/internal/module_watch.h"
#include "weft/engine/internal/replica_sums.h"
#include "weft/engine/internal/samples.h"
#include "weft/engine/internal/unit.h"
#include "weft/engine/sharded.h"

namespace weft::engine::internal {

class Gradients {
 public:
  struct Context {
    Group group;
    std::vector<Param>& params;
    const std::vector<Unit>& units;
    const ShardedOptions& options;
    Meter& meter;
    ReplicaSums& replicas;
    SampleCount& samples;  // of this rank since the last transfer
    ModuleWatch& watch;
    const Company& company;
    GradientCheck* check;  // null: none
  };
  // Collective.
  explicit Gradients(Context context);

  // The gradient of `param` is in its grad(). `travels`: send it now or as soon as its unit is
  // next; else keep it. Returns the unit if all of its parameters have had their gradient in this
  // backward, else -1.
  int ready(int param, bool travels);
  // No more gradients of blocks above `block` will come: sends those blocks, with zeros for missing
  // gradients.
  void passed(int block);
  // False: functions called by backward do not wait for peers, whatever memory for buffers this
  // takes.
  void may_wait(bool may) { may_wait_ = may; }
  // Ends a backward. With `travels`: sends all remaining units, with zeros for missing gradients.
  void finish(bool travels);
  // Waits for all transfers and adds their results to shards().
  void settle();
  // Drops all gradients. The sums over replicas do not count (ReplicaSums::rollback()).
  void clear();

  // By unit: this rank's shard of the averaged gradients since clear(); undefined: none. Valid
  // after settle().
  const std::vector<at::Tensor>& shards() const { return shards_; }
  void scale(double factor);
  // Calls take(name, piece) for each piece of a parameter, flat, in shards() of this rank.
  void each_piece(
      const std::function<void(const std::string& name, const at::Tensor& piece)>& take) const;
  // 2-norm of the shards of all ranks of the group. Collective.
  double norm() const;
  // Valid after settle(), until clear().
  const GradientReport& report() const { return report_; }

 private:
  struct Flight {
    int unit;
    at::Tensor wire, shard;
    Group::Work work;           // none for in-place sums, and after completion
    bool is_held = false;       // in place: peers may still read these gradients
    bool is_passed_on = false;  // the sum over the replicas has begun
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

  // Position of a parameter: Unit::params[place] of this unit.
  struct Position {
    int unit = -1;
    std::size_t place = 0;
  };

  const Context context_;
  std::vector<Position> position_of_;  // by parameter
  std::vector<int> missing_;           // by unit: parameters that this backward has not reached
  std::unique_ptr<InPlace> in_place_;  // null: by flat buffers (wires_)
  // In place: a round has begun and units have been published.
  bool began_ = false;
  std::vector<std::int64_t> held_;  // by unit, in place: bytes of held gradients
  std::vector<at::Tensor> wires_;   // by unit: buffers being filled
  int next_ = 0;                    // the unit to send next; -1: none
  std::vector<Flight> in_flight_;   // in the order of sending
  std::vector<at::Tensor> shards_;
  // Gradients are divided by a number that all ranks know, so that sums of narrow types neither
  // overflow nor vanish. It is the power of two nearest to the samples of the previous backward, so
  // that it does not change any bit of the result. settle() corrects for the actual number of
  // samples.
  double reference_;
  bool may_wait_ = true;
  std::vector<std::int64_t> kept_;  // by parameter: bytes of a gradient that is kept for now
  GradientReport report_;
};

}  // namespace weft::engine::internal

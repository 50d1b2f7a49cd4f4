// Transfers gradients to their shards, unit by unit in descending order on all ranks. If ranks read
// each other's memory, gradients are summed where autograd left them (in_place.h). Otherwise they
// are copied into the flat buffer of their unit, freed, and reduce-scattered when the unit is
// complete.
#pragma once

#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "weft/engine/internal/in_place.h"
#include "weft/engine/internal/module_watch.h"
#include "weft/engine/internal/samples.h"
#include "weft/engine/internal/unit.h"
#include "weft/engine/sharded.h"

namespace weft::engine::internal {

class Gradients {
 public:
  struct Context {
    Group group;
    std::vector<Param>& params;
    std::vector<Unit>& units;
    const ShardedOptions& options;
    Meter& meter;
    SampleCount& samples;  // of this rank since the last transfer
    ModuleWatch& watch;
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
  // Waits for all transfers and adds their results to the shards of the units.
  void settle();
  // Drops all gradients. The memory of codecs goes back to that of the last keep().
  void clear();
  // A step has used the gradients.
  void keep();

  // By parameter: whether any rank has had a gradient since clear(). Valid after settle().
  const std::vector<bool>& used() const { return used_; }
  // False if a gradient of any rank since clear() was not finite. Valid after settle(). Without
  // knows_all(), it may be false on some ranks only: of sums in a narrow type.
  bool all_finite() const { return all_finite_ && in_range_; }
  bool knows_all() const { return !narrows_; }
  // False if a codec has rounded a sum of this rank since clear() to infinity.
  bool is_in_range() const { return in_range_; }
  // False if the ranks have changed their modules differently (ModuleWatch::digest()). Valid after
  // settle(), until clear().
  bool alike() const { return alike_; }
  bool under_way() const { return !in_flight_.empty() || report_.defined(); }
  // Number of sums over replicas so far, which are the codec's steps.
  std::int64_t codec_steps() const { return codec_steps_; }
  void set_codec_steps(std::int64_t steps) { codec_steps_ = kept_steps_ = steps; }

 private:
  struct Flight {
    int unit;
    at::Tensor wire, shard;
    Group::Work work;      // none for in-place sums, and after completion
    bool is_held = false;  // in place: peers may still read these gradients
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
  template <class Visit>
  void each_exchange(const Visit& visit);

  const Context context_;
  std::int64_t codec_steps_ = 0, kept_steps_ = 0;  // now, and at the last keep()
  const bool narrows_;                             // the codec has a type of a narrow range
  std::vector<int> unit_of_, place_of_;            // by parameter
  std::vector<int> missing_;           // by unit: parameters that this backward has not reached
  std::unique_ptr<InPlace> in_place_;  // null: by flat buffers (wires_)
  // In place: a round has begun and units have been published.
  bool began_ = false;
  std::vector<std::int64_t> held_;  // by unit, in place: bytes of held gradients
  std::vector<at::Tensor> wires_;   // by unit: buffers being filled
  int next_ = 0;                    // the unit to send next; -1: none
  std::vector<Flight> in_flight_;   // in the order of sending
  std::size_t passed_on_ = 0;       // number of flights already summed over the replicas
  // Gradients are divided by a number that all ranks know, so that sums of narrow types neither
  // overflow nor vanish. It is the power of two nearest to the samples of the previous backward, so
  // that it does not change any bit of the result. settle() corrects for the actual number of
  // samples.
  double reference_;
  bool may_wait_ = true;
  std::vector<std::int64_t> kept_;  // by parameter: bytes of a gradient that is kept for now
  std::vector<bool> mine_, used_;
  bool all_finite_ = true, alike_ = true, in_range_ = true;
  // Samples, then for each parameter the number of ranks with a gradient. A rank whose gradient is
  // not finite counts as kNotFinite more.
  static constexpr double kNotFinite = 1e6;
  at::Tensor report_;
  Group::Work report_work_;
};

}  // namespace weft::engine::internal

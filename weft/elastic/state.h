// State: what a training loop must not lose when a rank is lost. Each thing is registered once,
// under a name of its own:
//
//   Net net;
//   auto model = weft::data_parallel(net);      // elastic::run() gives it a group
//   auto optimizer = model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
//   std::int64_t step = 0;
//   weft::elastic::State state;
//   state.add("model", model);                  // with its optimizer
//   state.add("step", step);
//
// Things are those of entry.h. They outlive the state, which keeps references. Their values are the
// same on all ranks, or slices of a whole (Sharded, ParallelModel).
// libtorch's random numbers belong to the state without registration: the generator of the CPU, one
// for each rank. A rank that the saved group did not have seeds its generator anew.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "weft/checkpoint/reader.h"
#include "weft/checkpoint/sharded.h"
#include "weft/comm/group.h"
#include "weft/elastic/entry.h"

namespace weft::elastic {

// One thread uses it.
class State {
 public:
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Registers a thing. Throws Error(kInvalidArgument) if the name or the thing is registered
  // already, and for a name with other characters than letters, digits, '_' and '-'.
  template <class T>
  void add(const std::string& name, T& thing) {
    add_entry(name, entry_of(thing));
  }
  // As add(), for anything else.
  void add_entry(const std::string& name, Entry entry);

  // Calls `make` for each group that trains, the first one too: to make what depends on the ranks,
  // such as a Sampler, a Mesh or a Sharded. The models of data_parallel() have their group by then,
  // and load() follows. All ranks call it, so it may be collective. Several run in their order.
  void on_group(std::function<void(const Group& world)> make);

  bool empty() const { return entries_.empty(); }
  // Names, types and shapes of what is known without a group. Equal on all ranks.
  std::string outline() const;

  // elastic::run() calls the functions below. A program may call shards() and load() too, for
  // checkpoints: checkpoint::save(dir, state.shards(world, step), world).
  // Makes everything that belongs to a group. Collective.
  void bind(const Group& world);
  // Drops it. Not collective, also where the group has failed.
  void unbind();
  // This rank's part of the state after `step` steps, as views of its memory. Not collective.
  // Throws Error(kInvalidArgument) if several models have a codec, and for a tensor's name that no
  // checkpoint can have.
  checkpoint::Shards shards(const Group& world, std::int64_t step) const;
  // Loads what any number of ranks returned from shards(). Throws Error(kInvalidArgument), naming
  // the first value that is missing or has another shape. The values are then a mixture.
  // Collective.
  void load(const Group& world, const checkpoint::Reader& reader);

 private:
  std::vector<std::pair<std::string, Entry>> entries_;
  std::vector<std::function<void(const Group&)>> makers_;
};

}  // namespace weft::elastic

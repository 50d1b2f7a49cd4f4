// Where the weights and the optimizer state of a replica live: on each rank, once for the ranks of
// a host, or on a device.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "weft/comm/group.h"
#include "weft/engine/internal/module_watch.h"
#include "weft/engine/internal/param_list.h"
#include "weft/engine/internal/state_slices.h"
#include "weft/engine/internal/transport.h"
#include "weft/engine/internal/updates.h"
#include "weft/engine/internal/whole_updates.h"

namespace weft::engine::internal {

class ReplicaMemory {
 public:
  // All outlive it.
  ReplicaMemory(const Group& group, const ParamList& params) : group_(group), params_(params) {}

  // Places the weights, and an optimizer state whose first array has the values `first_value`.
  // Tells `updates` the places. With a `host`, whose ranks can share memory, and by the wish
  // `weights`, both exist once for all ranks of the group; all values are then rank 0's. `trial` is
  // the input of the trial that decides for Weights::kAuto. Collective; call it once.
  struct Request {
    Updates& updates;  // outlives it
    double first_value = 0;
    net::Host* host = nullptr;
    Weights weights = Weights::kAuto;
    TransportContext trial;
  };
  void place(const Request& request);
  // In place of place(): weights and state stay on the device. Not collective.
  void place_on_device(Updates& updates, double first_value);

  // Weights and state exist once for all ranks.
  bool is_shared() const { return shared_; }
  // The ranks could share memory, and each has weights of its own.
  bool is_private() const { return private_; }
  // True if this rank writes for its host. If weights are shared, one rank does.
  bool writes() const { return !shared_ || group_.rank() == 0; }
  // The part of a parameter that this rank updates, if the rule needs whole tensors: with shared
  // weights an equal part of each, else all.
  WholePiece piece(std::size_t param) const;
  // Of all trained parameters, without empty ones, if weights are shared.
  std::vector<WholePiece> shared_pieces() const;

  // "<name>.<array>" of all trained parameters, in place.
  void each_state(
      const std::function<void(const std::string& name, at::Tensor state)>& visit) const;
  // All ranks get rank 0's weights of trained parameters, and its state. Collective.
  void share_rank_0();
  // All ranks get the values of `given` on rank 0, by name: weights and state. Collective.
  void take_over(const std::map<std::string, at::Tensor>& given);
  // Tensors that are equal on all ranks are divided among them for saving. On loading, each rank
  // fills all of its own.
  checkpoint::Slices slices(const Sharded::Placing& placing, Wanted wanted,
                            const ModuleWatch& watch) const;
  // Bytes of this rank, or its share of common ones.
  Sharded::Memory used() const;

 private:
  // Parts of flat memory begin at cache lines. Offsets are in bytes, by trained parameter; -1:
  // without a part.
  struct Layout {
    std::vector<std::int64_t> offsets;
    std::int64_t bytes = 0;
  };
  Layout layout(const std::function<bool(int param)>& has_part) const;
  void share_weights(const Request& request, std::vector<std::byte*>& weights);
  void place_state(std::vector<Updates::Place>& places, std::size_t array);
  at::Tensor state_of(int param, std::size_t array) const;

  const Group& group_;
  const ParamList& params_;
  Updates* updates_ = nullptr;         // null: there is no optimizer state
  std::vector<at::Tensor> own_state_;  // flat memory of each array, if it is not shared
  std::int64_t state_bytes_ = 0;
  bool shared_ = false, private_ = false;
};

}  // namespace weft::engine::internal

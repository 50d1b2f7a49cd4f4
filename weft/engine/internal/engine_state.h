// Saves and loads the state of a model, wherever its placement has it: weights, optimizer state and
// steps; whole on rank 0, or as the slices of each rank.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "weft/checkpoint/slice.h"
#include "weft/engine/internal/held_changes.h"
#include "weft/engine/internal/param_list.h"
#include "weft/engine/sharded.h"

namespace weft::engine {

class Engine;

class EngineState {
 public:
  using NamedTensors = Sharded::NamedTensors;

  // `engine` outlives it.
  explicit EngineState(Engine& engine);

  // As Sharded::state() and load_state().
  NamedTensors whole();
  void load(const NamedTensors& state);
  // As those of Sharded. Without an optimizer, these are of the weights alone.
  checkpoint::Slices shards(const Sharded::Placing& placing);
  checkpoint::Slices held(const Sharded::Placing& placing);
  void load_shards(const checkpoint::SliceSource& source, const Sharded::Placing& placing,
                   bool weights_only);
  void take_changes();
  void check_changes();

  // "<name>.step" of all trainable parameters, "steps", and "<name>.<state>" of what each rank
  // keeps whole (optim::tensor_states()).
  void add_steps(NamedTensors& state) const;
  void take_steps(const std::map<std::string, at::Tensor>& state);

  // True if the program has written to tensors of held() since the last step or load.
  bool is_held_changed() const { return held_changes_.any(); }
  // On any rank. Collective.
  bool is_held_changed_anywhere() const;
  // A step or load has ended.
  void note_held() { held_changes_.note(); }

 private:
  NamedTensors whole_tensors() const;
  std::string mismatch(const NamedTensors& state) const;
  void refuse(const std::string& why) const;
  void on_all_ranks(const std::function<void()>& body);

  Engine& engine_;
  const Group& group_;
  const internal::ParamList& params_;
  internal::HeldChanges held_changes_;  // since the last step or load
};

}  // namespace weft::engine

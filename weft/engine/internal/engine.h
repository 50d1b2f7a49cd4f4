// One rank's model under the engine, wherever its weights, gradients and optimizer state live: the
// parameters, the hooks on their gradients, the samples and steps, and the saved state. There are
// two placements:
//
//   Replica        stage 0: gradients of all ranks are combined; weights and state are whole on
//                  each rank, or once on each host (replica.h)
//   ShardedModel   stages 1 to 3: each rank has a part of the state, of the gradients, of the
//                  parameters (sharded_model.h)
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/engine/internal/caller.h"
#include "weft/engine/internal/company.h"
#include "weft/engine/internal/engine_state.h"
#include "weft/engine/internal/gradient_hooks.h"
#include "weft/engine/internal/hidden_gradients.h"
#include "weft/engine/internal/module_watch.h"
#include "weft/engine/internal/param_list.h"
#include "weft/engine/internal/samples.h"
#include "weft/engine/internal/state_slices.h"
#include "weft/engine/internal/unit.h"
#include "weft/engine/internal/updates.h"
#include "weft/engine/internal/whole_updates.h"
#include "weft/engine/sharded.h"

namespace weft::engine {

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  using NamedTensors = Sharded::NamedTensors;

  struct Context {
    std::vector<Block> blocks;
    Group group;
    ShardedOptions options;
    const void* program = nullptr;  // of the program's group, for Company; make_engine() sets it
  };

  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  // Called after construction, since hooks hold a weak pointer to it.
  void start();
  // Ends all waits of peers for this rank: by a failed call, `error`, or `why`. Always with
  // kAborted, unlike as_ended(): peers can regroup after it, whatever has ended this rank.
  void abandon() noexcept;
  void abandon_by(const std::exception& error) noexcept;
  virtual void abandon(const std::string& why) noexcept;

  const Group& group() const { return group_; }
  virtual Tensors run(std::size_t block, const Tensors& inputs);
  at::Tensor forward(const at::Tensor& input);
  internal::SampleCount& samples() { return *samples_; }
  // Called before a forward pass. Throws Error(kInvalidArgument) if the program has changed the
  // module in a way that cannot count (module_watch.h), or if another model trains its parameters.
  void check_module();
  void pause() {
    show_gradients();
    ++paused_;
  }
  void resume() { --paused_; }
  virtual void skip_batch() = 0;

  virtual void send_gradients() = 0;
  virtual void await_gradients() = 0;
  virtual void each_gradient(
      const std::function<void(const std::string&, const at::Tensor&)>& take) = 0;
  virtual double grad_norm() = 0;
  virtual Sharded::Finite are_finite() = 0;
  virtual void step(double scale) = 0;
  virtual void zero_grad() = 0;
  // Waits until the weights are those of the last step.
  virtual void settle() = 0;

  internal::Updates& updates();
  std::int64_t steps() const { return steps_; }
  DataParallelBase::Times take_times() { return std::exchange(times_, {}); }

  virtual NamedTensors gradients() = 0;
  EngineState& state() { return state_; }
  virtual Sharded::Memory memory() = 0;
  virtual std::string describe() const = 0;

 protected:
  using Visit = std::function<void(const std::string& name, const at::Tensor& whole)>;

  // Throws as ParamList.
  explicit Engine(Context context);
  // Of the trained ones.
  virtual void on_ready(int param) = 0;
  // Collective: rank 0 visits all weights ("<name>") and all optimizer state ("<name>.<array>").
  virtual void each_whole(const Visit& visit) = 0;
  // Collective: all ranks get rank 0's values.
  virtual void take_over(const std::map<std::string, at::Tensor>& state) = 0;
  // This rank's weights and state in place. Not collective.
  using Wanted = internal::Wanted;
  virtual checkpoint::Slices slices(const Sharded::Placing& placing, Wanted wanted) = 0;
  // Collective. Called before and after the slices are filled.
  virtual void begin_load() = 0;
  virtual void end_load() = 0;
  // Throws Error(kInvalidArgument) if the program has written values that cannot count. Reads all
  // weights. Collective.
  virtual void check_values() = 0;
  // Takes the values of parameters that got other memory since the last step, as by torch::load().
  // Collective. Throws Error(kInvalidArgument) if the ranks have loaded other ones.
  virtual void take_loaded() = 0;
  // True if some of the first `count` parameters got other memory. Collective. Throws
  // Error(kInvalidArgument) if that is so on some ranks only.
  bool has_loaded(std::size_t count);
  // Aborts the group, so that no peer waits, and rethrows the error.
  template <class Body>
  auto guarded(const Body& body) -> decltype(body());

  // From now on, the program cannot use grad() after backward(); see HiddenGradients.
  void begin_hiding(const std::string& why) { hidden_.emplace(params_, why); }
  // Before backward() or the engine uses grad(). Throws Error(kInvalidArgument) if the program has
  // changed a hidden gradient that still counts.
  void show_gradients();
  void hide_gradients();
  // Called before backward() adds to a gradient.
  virtual void begin_adding() { show_gradients(); }
  bool are_gradients_dropped() const { return hooks_.are_dropped(); }
  virtual bool gradients_count() const = 0;
  // While it lives, grad() is what backward() left.
  class Shown {
   public:
    explicit Shown(Engine& engine) : engine_(engine) {
      hide_ = engine.hidden_ && engine.hidden_->are_hidden();
      engine.show_gradients();
    }
    ~Shown() {
      if (hide_) engine_.hide_gradients();
    }
    Shown(const Shown&) = delete;
    Shown& operator=(const Shown&) = delete;

   private:
    Engine& engine_;
    bool hide_ = false;
  };

  // Makes whole_, after updates_ and watch(). As WholeUpdates::Context.
  void make_whole(bool divided, std::vector<internal::WholePiece> shared);
  // Changes of the module count from now on.
  void begin_watch();
  // The learning rate and the number of steps must be alike on all ranks from now on.
  void watch_optimizer_settings();
  internal::ModuleWatch& watch() { return *watch_; }
  // As those of EngineState.
  bool is_held_changed() const { return state_.is_held_changed(); }
  bool is_held_changed_anywhere() const { return state_.is_held_changed_anywhere(); }
  void note_held() { state_.note_held(); }
  // Tensors of held() count their changes themselves.
  virtual bool counts_held_apart() const = 0;
  // Gives all parameters the engine's memory again. The values that they had are lost.
  void go_home();
  // Of all blocks.
  Tensors buffers() const;

  // Begins to note with which models backward() reaches this one. `number`: as Company's.
  void join_company(std::int64_t number);
  internal::Company& company() { return *company_; }

  std::vector<Block> blocks_;
  ShardedOptions options_;
  const Group group_;
  internal::ParamList params_;
  std::unique_ptr<internal::Updates> updates_;
  std::optional<internal::ModuleWatch> watch_;
  // Null unless the rule needs whole tensors.
  std::unique_ptr<internal::WholeUpdates> whole_;
  std::optional<internal::HiddenGradients> hidden_;  // empty: grad() is what one process would have
  const std::shared_ptr<internal::SampleCount> samples_ = std::make_shared<internal::SampleCount>();
  int paused_ = 0;
  std::int64_t steps_ = 0;
  bool stepped_ = false;  // step() was called and nothing has run since
  DataParallelBase::Times times_;
  internal::Caller caller_;  // of the last forward pass

 private:
  friend class EngineState;

  const void* const program_;
  std::optional<internal::Company> company_;
  internal::GradientHooks hooks_{params_};
  EngineState state_{*this};
};

template <class Body>
auto Engine::guarded(const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::exception& error) {
    abandon_by(error);
    throw;
  } catch (...) {
    abandon();
    throw;
  }
}

// Name of a duplicate of `group` for a purpose: "dp/gradients".
inline std::string part_name(const Group& group, const char* purpose) {
  const std::string& name = group.name();
  return name.substr(0, name.find('/')) + "/" + purpose;
}

// Makes the engine for the stage of the options, with its own groups. Collective.
std::shared_ptr<Engine> make_engine(Engine::Context context, OptimizerSpec optimizer);

}  // namespace weft::engine

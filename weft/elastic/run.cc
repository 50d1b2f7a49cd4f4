#include "weft/elastic/run.h"

#include <ATen/ATen.h>

#include <chrono>
#include <memory>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/fault/failpoint.h"
#include "weft/base/log.h"
#include "weft/elastic/copying.h"
#include "weft/elastic/internal/random_state.h"
#include "weft/elastic/newest_state.h"
#include "weft/elastic/recovery.h"

namespace weft::elastic {
namespace {

// Text of the saved state: whether a step has ended training.
constexpr const char* kEnded = "run:ended";

// The first group, of ranks whose states have the same names, types and shapes.
Group first_group(const State& state, const RunOptions& options) {
  if (options.world) return *options.world;
  comm::InitOptions init = options.init;
  init.alike.emplace("state", state.outline());
  return comm::init(init);
}

class Run {
 public:
  Run(State& state, const Step& step, const RunOptions& options)
      : state_(state),
        step_(step),
        options_(options),
        random_(internal::random_now()),
        recovery_(first_group(state, options)) {}

  RunResult result() {
    try {
      train();
    } catch (const std::exception& error) {
      world().abort(Error(code_of(error), describe(error)));
      throw;
    }
    return {world(), steps_, recoveries_, left_};
  }

 private:
  using Clock = std::chrono::steady_clock;

  const Group& world() const { return recovery_.world(); }

  void train() {
    bool entered = recovery_.is_newcomer();
    if (entered) recover(nullptr);
    for (;;) {
      try {
        if (!entered) enter({});
        entered = true;
        while (!ended_ && !left_) {
          do_step();
          if (resize_ != 0 && !ended_) resize();
        }
        if (left_) return;
        return world().barrier();  // no rank leaves while others still need it
      } catch (const Error& error) {
        if (!recovery_.answers(error)) throw;
        recover(&error);
        entered = true;
      }
    }
  }

  Recovery::Steps steps() {
    const Held held{.rejoins = true, .copies = copying_ ? copying_->copies() : nullptr};
    return {.leave =
                [this] {
                  copying_.reset();
                  state_.unbind();
                },
            .enter = [this, held] { return enter(held); }};
  }

  void recover(const Error* why) {
    resize_ = 0;
    recovery_.recover(steps(), why);
    recoveries_ += why != nullptr ? 1 : 0;
  }

  // After a copy of the state, in which the ranks have agreed on their number.
  void resize() {
    const int ranks = std::exchange(resize_, 0);
    left_ = world().rank() >= ranks;
    if (!left_) return recovery_.resize(steps(), ranks, requests_.newcomers());
    recovery_.leave_job();
    // The others may still read these copies: they stay until the process ends.
    [[maybe_unused]] const auto* const kept = new auto(copying_->copies());
  }

  // What this rank brings along from an earlier group.
  struct Held {
    bool rejoins = false;  // false: the first group of the job
    std::shared_ptr<const StateCopies> copies = nullptr;
  };

  std::int64_t enter(const Held& held) {
    internal::set_random(random_);  // on_group() may draw numbers
    state_.bind(world());
    if (held.rejoins) load(held.copies.get());
    if (recovery_.is_on()) {
      copying_.emplace(world(), options_.copy_steps);
      copy();
    }
    return steps_;
  }

  void load(const StateCopies* held) {
    const std::int64_t done = std::exchange(steps_, 0);
    ended_ = false;
    use_newest_state(world(), held,
                     [&](std::optional<Recovered> found, const std::string& missing) {
                       if (found) {
                         state_.load(world(), found->reader);
                         steps_ = found->step;
                         const auto& texts = found->reader.state();
                         ended_ = texts.contains(kEnded) && texts.at(kEnded) == "1";
                       } else if (some_rank_has_done(done)) {
                         reload(missing);
                       }  // else the first copies were not complete, and training begins again
                     });
  }

  bool some_rank_has_done(std::int64_t steps) const {
    at::Tensor most = at::scalar_tensor(steps, at::kLong);
    world().all_reduce(most, ReduceOp::kMax);
    return most.item<std::int64_t>() > 0;
  }

  void reload(const std::string& missing) {
    const std::string lost = "no whole copy of the state is left in memory" +
                             (missing.empty() ? "" : ": " + missing + " are lost");
    if (!options_.reload) {
      throw Error(Errc::kUnavailable,
                  lost +
                      "; start the program again, from a checkpoint if it has one "
                      "(RunOptions::reload continues from it without a restart)");
    }
    if (world().rank() == 0) log_warn(lost + "; training goes on from the program's checkpoint");
    steps_ = options_.reload(world());
  }

  void do_step() {
    const auto start = Clock::now();
    set_failpoint_step(steps_ + 1);
    failpoint("step.begin");
    ended_ = !step_(world());
    ++steps_;
    if (!copying_) return;
    copying_->add_step(std::chrono::duration<double>(Clock::now() - start).count());
    if (copying_->is_due(steps_)) copy();
  }

  void copy() {
    checkpoint::Shards shards = state_.shards(world(), steps_);
    shards.state[kEnded] = text_of(ended_);
    const int ranks = copying_->take(shards, requests_.ranks());
    if (ranks > 0 && ranks != world().size()) resize_ = ranks;
  }

  State& state_;
  const Step& step_;
  const RunOptions& options_;
  const at::Tensor random_;  // state of the random numbers before the first group
  Recovery recovery_;
  std::optional<Copying> copying_;
  SizeRequests requests_;
  std::int64_t steps_ = 0;
  int resize_ = 0;  // number of ranks to change to; 0: none
  bool ended_ = false, left_ = false;
  int recoveries_ = 0;
};

}  // namespace

RunResult run(State& state, const Step& step, const RunOptions& options) {
  WEFT_REQUIRE(!state.empty(),
               "elastic::run: nothing is registered in the state, so a lost rank would lose "
               "everything; register the model, the optimizer and the step with State::add()");
  WEFT_REQUIRE(step, "elastic::run: there is no step function");
  return Run(state, step, options).result();
}

}  // namespace weft::elastic

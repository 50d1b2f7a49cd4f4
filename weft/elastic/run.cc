#include "weft/elastic/run.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <utility>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/base/fault/failpoint.h"
#include "weft/base/log.h"
#include "weft/base/text/variables.h"
#include "weft/elastic/copying.h"
#include "weft/elastic/internal/random_state.h"
#include "weft/elastic/newest_state.h"
#include "weft/elastic/recovery.h"
#include "weft/rank_link/messages.h"

namespace weft::elastic {
namespace {

// Text of the saved state: whether a step has ended training.
constexpr const char* kEnded = "run:ended";

// Steps and seconds between two questions whether a rank was told to stop.
constexpr double kLookSteps = 10, kLookSeconds = 1;

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
        recovery_(first_group(state, options), {.multiple = options.multiple}) {}

  RunResult result() {
    try {
      train();
    } catch (const std::exception& error) {
      keep_until_exit(copies());  // the others may recover from them
      world().abort(Error(code_of(error), describe(error)));
      throw;
    }
    return {world(), steps_, recoveries_, left_, stopped_};
  }

 private:
  using Clock = std::chrono::steady_clock;

  const Group& world() const { return recovery_.world(); }

  void train() {
    bool entered = recovery_.is_newcomer(), fits = entered;
    if (entered) recover(nullptr);
    for (;;) {
      try {
        if (!fits) {
          entered = recovery_.fit(steps(), options_.should_stop);
          left_ = recovery_.has_left();
        }
        fits = true;
        if (!entered && !left_) enter(nullptr);
        entered = true;
        while (!ended_ && !left_ && !stopped_) {
          if (resize_ != 0) {  // also after the first copy, before any step
            resize();
            continue;
          }
          do_step();
          if (options_.should_stop && !ended_ && steps_ >= next_look_) look();
        }
        if (left_) return;
        if (stopped_) save();
        world().barrier();  // no rank leaves while others still need it
        if (const auto mine = copies()) mine->keep_memory();
        return;
      } catch (const Error& error) {
        if (!recovery_.answers(error)) throw;
        recover(&error);
        entered = fits = true;
      }
    }
  }

  Recovery::Steps steps() {
    return {.copies = [this] { return copies(); },
            .leave =
                [this] {
                  copying_.reset();
                  state_.unbind();
                },
            .enter = [this](const Brought& brought) { return enter(&brought); }};
  }

  void recover(const Error* why) {
    resize_ = 0;
    recovery_.recover(steps(), why);
    recoveries_ += why != nullptr ? 1 : 0;
    left_ = recovery_.has_left();
  }

  // After a copy of the state, in which the ranks have agreed on their number.
  void resize() {
    const int ranks = std::exchange(resize_, 0);
    left_ = world().rank() >= ranks;
    if (!left_) {
      recovery_.resize(steps(), ranks, requests_.newcomers());
      left_ = recovery_.has_left();
      return;
    }
    recovery_.leave_job();
    keep_until_exit(copies());
  }

  // Null without them.
  std::shared_ptr<const StateCopies> copies() const {
    return copying_ ? copying_->copies() : nullptr;
  }

  // `brought`: null in the first group of the job.
  std::int64_t enter(const Brought* brought) {
    next_look_ = 0;
    stopped_ = false;
    internal::set_random(random_);  // on_group() may draw numbers
    state_.bind(world());
    if (brought != nullptr) {
      load(*brought);
    } else if (options_.resume) {
      steps_ = options_.reload(world());
    }
    if (recovery_.is_on()) {
      copying_.emplace(world(), options_.copy_steps);
      copy();
    }
    return steps_;
  }

  void load(const Brought& brought) {
    has_done_ = has_done_ || steps_ > 0;
    steps_ = 0;
    ended_ = false;
    use_newest_state(world(), brought,
                     [&](std::optional<Recovered> found, const std::string& missing) {
                       if (found) {
                         state_.load(world(), found->reader);
                         steps_ = found->step;
                         const auto& texts = found->reader.state();
                         ended_ = texts.contains(kEnded) && texts.at(kEnded) == "1";
                       } else if (some_rank_has_done(has_done_ || state_existed())) {
                         reload(missing);
                       } else if (options_.resume) {
                         steps_ = options_.reload(world());
                       }  // else the first copies were not complete, and training begins again
                     });
  }

  bool some_rank_has_done(bool has_done) const {
    at::Tensor most = at::scalar_tensor(has_done ? 1 : 0, at::kLong);
    world().all_reduce(most, ReduceOp::kMax);
    return most.item<std::int64_t>() > 0;
  }

  // True in a process that was started when the others had a state to hand on. They may all be
  // lost since.
  static bool state_existed() { return is_variable_set("WEFT_HAS_STATE"); }

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
    step_s_ = seconds_since(start);
    if (!copying_) return;
    copying_->add_step(step_s_);
    if (copying_->is_due(steps_)) copy();
  }

  // The ranks agree on whether to stop, and on when they ask again.
  void look() {
    const bool wishes = options_.should_stop();
    if (wishes) rank_link::tell_launcher(rank_link::Stopping{});
    at::Tensor seen = at::tensor({wishes ? 1.0 : 0.0, step_s_}, at::kDouble);
    world().all_reduce(seen, ReduceOp::kMax);
    const double step_s = std::max(seen[1].item<double>(), 1e-9);
    stopped_ = seen[0].item<double>() > 0;
    next_look_ =
        steps_ + static_cast<std::int64_t>(std::clamp(kLookSeconds / step_s, 1.0, kLookSteps));
  }

  void save() {
    const std::string folder = options_.save ? options_.save(world()) : "";
    if (world().rank() != 0) return;
    if (!folder.empty()) rank_link::tell_launcher(rank_link::CheckpointSaved{folder});
    log_warn("training stops: a rank was told to stop",
             {{"step", steps_}, {"checkpoint", folder.empty() ? "none" : folder}});
  }

  void copy() {
    checkpoint::Shards shards = state_.shards(world(), steps_);
    shards.state[kEnded] = text_of(ended_);
    const int ranks = copying_->take(shards, requests_.ranks());
    if (!std::exchange(told_, true)) rank_link::tell_launcher(rank_link::Copied{});
    resize_ = ranks > 0 && ranks != world().size() ? ranks : 0;
  }

  State& state_;
  const Step& step_;
  const RunOptions& options_;
  const at::Tensor random_;  // state of the random numbers before the first group
  Recovery recovery_;
  std::optional<Copying> copying_;
  SizeRequests requests_;
  std::int64_t steps_ = 0;
  bool has_done_ = false;       // steps_ was above 0 once; stays if a recovery is interrupted
  int resize_ = 0;              // number of ranks to change to; 0: none
  std::int64_t next_look_ = 0;  // step after which look() is due
  double step_s_ = 0;           // of the last step, on this rank
  bool ended_ = false, left_ = false, stopped_ = false;
  bool told_ = false;  // the launcher knows that there is a state
  int recoveries_ = 0;
};

}  // namespace

RunResult run(State& state, const Step& step, const RunOptions& options) {
  WEFT_REQUIRE(!state.empty(),
               "elastic::run: nothing is registered in the state, so a lost rank would lose "
               "everything; register the model, the optimizer and the step with State::add()");
  WEFT_REQUIRE(step, "elastic::run: there is no step function");
  WEFT_REQUIRE(options.multiple >= 1, "elastic::run: RunOptions::multiple must be 1 or more");
  WEFT_REQUIRE(!options.save || options.should_stop,
               "elastic::run: RunOptions::save is called when should_stop ends training; set "
               "should_stop, too");
  WEFT_REQUIRE(!options.resume || options.reload,
               "elastic::run: RunOptions::resume calls reload before the first step; set reload");
  return Run(state, step, options).result();
}

}  // namespace weft::elastic

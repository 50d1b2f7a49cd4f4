// run() trains in a loop of your own and goes on after the loss of a rank:
//
//   weft::elastic::run(state, [&](const weft::Group& world) {
//     const auto [input, target] = batch(step, world.rank(), world.size());
//     mse_loss(model.forward(input), target).backward();
//     optimizer.step();
//     optimizer.zero_grad();
//     return ++step < kSteps;                       // false: this was the last step
//   });
//
//   weft run -n 4 --max-replacements 10 ./program   or --min-ranks 2
//
//   step ── step ── copy ── step ── a rank is lost
//                    │                 │ the others form the group again, with a new process
//                    └──── state ──────┤ or with fewer ranks; models are bound to it: on_group()
//                                      ▼
//                           step ── step (these were done before) ── step …
//
// What holds
// - Steps since the last copy are done again, the one under way too. So no step is lost, but a step
//   may run more than once: its output, if any, appears again.
// - With the same number of ranks, the result has the bits of a run without a fault, if a step
//   depends on the state, the rank and the number of ranks alone.
// - With fewer or more ranks (weft scale), the step sees another world. Divide a batch of fixed
//   size by world.size().
// - A new process calls the same functions as the others. Until its first step it has no state:
//   run() then loads the others'. Call no collective operation between the start of the program and
//   run(): the other ranks would not take part in it.
// - A new process whose version, secret or registered things differ from those of the running job
//   is refused with the difference, and the others do not notice it.
// - A job that is asked to go (SIGTERM, weft stop) stops after the same step on all ranks:
//   RunOptions::should_stop. RunOptions::save then saves a checkpoint.
// - Without a launcher, or without its flags, run() trains and a lost rank is an error as usual.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "weft/comm/group.h"
#include "weft/comm/init.h"
#include "weft/elastic/state.h"

namespace weft::elastic {

struct RunOptions {
  comm::InitOptions init;  // How the first group is formed.
  // Group to train in. Empty: weft::init(init).
  std::optional<Group> world = std::nullopt;
  // The number of ranks must be a multiple of this one, such as the stages of a pipeline. Of other
  // numbers, the highest ranks leave (RunResult::left). If the first group is too small, it waits
  // for more ranks (Recovery::fit()).
  int multiple = 1;
  // Steps between two copies of the state in memory. 0: as many that copies take 1 % of the time.
  // After a loss, the steps since the last copy are done again.
  std::int64_t copy_steps = 0;
  // Loads an older state, such as a checkpoint, if too many ranks were lost at once and no whole
  // copy is left. Returns the number of steps in it. Collective. Empty: run() then throws
  // Error(kUnavailable).
  std::function<std::int64_t(const Group& world)> reload;
  // Call `reload` before the first step, too: it then returns 0 if there is no checkpoint.
  bool resume = false;
  // True if this process was asked to end, such as by SIGTERM. Called between steps on every rank,
  // about once a second and at least every 10 steps. True on any rank ends training on all ranks,
  // after the same step. Set it on all ranks, or on none.
  std::function<bool()> should_stop;
  // Saves a checkpoint, once should_stop has ended training. Called on all ranks after the same
  // step. Returns the checkpoint's folder, which the launcher names to the user; empty: none was
  // saved. Collective. If a rank is lost in it, the others recover, if they can, and stop again.
  std::function<std::string(const Group& world)> save;
};

struct RunResult {
  Group world;             // The ranks at the end.
  std::int64_t steps = 0;  // Steps done, counted once each.
  int recoveries = 0;      // Losses that this process has survived.
  // True: the job has shrunk, and this rank is no longer part of it. End the program.
  bool left = false;
  // True: should_stop ended training. End the program, with exit code 143 (128 + SIGTERM).
  bool stopped = false;
};

// Does one step of training. Returns false if it was the last one; all ranks return the same.
using Step = std::function<bool(const Group& world)>;

// Calls `step` until it returns false, at least once, on all ranks. Call it once in a program.
// Collective. Throws Error(kInvalidArgument) for a state without any registered thing, and for
// options that need another one. Throws what weft::init(), `step` and `save` throw, and
// Error(kAborted) on a rank without which the others have gone on. The group is then aborted, so
// that the other ranks notice at once.
RunResult run(State& state, const Step& step, const RunOptions& options = {});

}  // namespace weft::elastic

// Real steps of a layout: what the training loop does in a step, without the loop.
#pragma once

#include <vector>

#include "weft/comm/group.h"
#include "weft/train/options.h"
#include "weft/train/task.h"

namespace weft::train::internal {

// One step. Seconds are medians over some steps. The same on all ranks.
struct ProbedStep {
  double seconds = 0;        // Of the whole step: the mean over the ranks.
  double data = 0;           // Waiting for the batch: the mean over the ranks.
  double compute = 0;        // Forward and backward: the mean over the ranks.
  double communication = 0;  // Exposed: in each step, of the rank that waits least.
  double update = 0;         // Of the optimizer: the mean over the ranks.
  double memory = 0;  // Peak bytes of a process (observe::memory_share()): the mean over the ranks.
  double traffic = 0;        // Bytes that a rank sends, or reads in others' memory: the mean.
  std::vector<double> busy;  // By rank: seconds in which it does not wait for others.
  // Seconds besides data, computation, communication and update.
  double rest() const;
};

struct ProbeOptions {
  int warm = 2;          // Steps that do not count.
  int least = 3;         // Steps that count, at least.
  int most = 100;        // Steps that count, at most.
  double seconds = 0.3;  // Seconds of the steps that count, if there are at least `least`.
  // After a step of so many seconds, two steps count.
  double long_step = 2;
};

// Gives the memory that the ranks have freed back to the system. Ranks map each other's memory, so
// what one of them uses next can be told only when all have done so. Collective.
void release_memory(const Group& world);

// Makes the learner of `options`, does some steps with learning rate 0, and ends it. With
// options.balance_by_speed, batches are divided by speed after the steps that do not count.
// Collective. Throws as Learner.
ProbedStep probe(const Task& task, const Options& options, const Group& world,
                 const ProbeOptions& how = {});

// The values of a model that a program has made itself: steps of a probe change its buffers, and
// sharded parameters lose their memory.
class KeptValues {
 public:
  explicit KeptValues(const parallel::BlockModel& model);
  // Gives the model its values back.
  void restore() const;

 private:
  const parallel::BlockModel& model_;
  std::vector<std::vector<at::Tensor>> values_;  // By block: parameters, then buffers.
};

}  // namespace weft::train::internal

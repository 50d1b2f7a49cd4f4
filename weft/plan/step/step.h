// Simulates one training step: the pipeline schedule as data, collectives on the links, overlap of
// computation and communication, the optimizer; and the memory of each rank over time.
//
//   const Step step = simulate_step({.model = …, .cluster = …, .layout = …});
//   step.seconds; step.parts.bubble; step.peak().total();
//
// Pure functions. A step with 64 stages and 512 micro-batches takes some ten milliseconds.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/plan/cluster/cluster.h"
#include "weft/plan/cost/calibrated.h"
#include "weft/plan/model/blocks.h"
#include "weft/plan/step/layout.h"
#include "weft/schedule/pipeline/play.h"

namespace weft::plan {

struct Optimizer {
  std::string name = "adam";
  double state_bytes = 8;  // State of a parameter, without master weights.
  bool masters = true;     // Float32 copies of 16-bit weights, where the software keeps any.
};
// The optimizer of this name, with its state_bytes:
//   adam, adamw, lamb                       8
//   adam16                                  4: the precision of the model, no master weights
//   momentum, rmsprop, adagrad, lion, lars  4
//   muon                                    4, that of matrices
//   sgd, adafactor                          0
// Throws Error(kInvalidArgument).
Optimizer optimizer_of(std::string_view name);

// Blocks and their costs, which layouts share that differ in pp, dp, schedule, recomputation … For
// searches; one thread at a time.
class StepCache {
 public:
  StepCache();
  ~StepCache();
  struct Content;
  Content& content() { return *content_; }

 private:
  std::unique_ptr<Content> content_;
};

// Costs of a codec on the ranks of a job, for a byte of float32 gradients.
struct CodecCost {
  double seconds = 0;  // To encode and decode it.
  double bytes = 1;    // That are sent for it.
};

// What real steps of a job have shown, for the prediction of its other layouts. The defaults change
// nothing.
struct Corrections {
  double compute = 1;  // Seconds of forward and backward over those of the blocks alone.
  // Fixed seconds of each micro-batch, for the whole model. A stage takes its share of them by
  // parameters.
  double micro_batch = 0;
  double message = 0;          // Further seconds of each message between two stages.
  double sync = 1;             // Seconds of gradients, shards and optimizer over the model's.
  double sync_start = 0;       // Seconds of them that do not depend on bytes, before `sync`.
  std::optional<double> step;  // Seconds of a step besides all this. Empty: the software's.
  // By rank: seconds of its computation over the mean of the ranks. Empty: all alike.
  std::vector<double> slowness;
  // By codec (Layout::codec). One that is missing takes no time, and codec_ratio() bytes.
  std::map<std::string, CodecCost> codecs;
};

struct Job {
  Model model;
  Cluster cluster;
  Layout layout;
  Software software;
  Optimizer optimizer;
  double loading = 0;  // Seconds of data loading of a step that nothing hides.
  double noise = 0;    // Standard deviation of a rank's step time, relative; stragglers.
  const Calibration* constants = nullptr;  // nullptr: calibration().
  StepCache* cache = nullptr;              // Shared by jobs that differ in their layout alone.
  Corrections measured;
};

// Seconds of the rank that ends last. They add up to the step.
struct Parts {
  double compute = 0;    // Forward and backward; waiting for a processor that ranks share.
  double recompute = 0;  // Forward again.
  double bubble = 0;     // Idle in the pipeline.
  // Exposed communication, by kind.
  double tensor = 0, context = 0, expert = 0, pipeline = 0, sharding = 0, gradients = 0;
  double optimizer = 0;
  double other = 0;  // Data loading, stragglers, work of the host.
  // The part of `sharding` after the last backward.
  double sharding_after = 0;
  double exposed() const { return tensor + context + expert + pipeline + sharding; }
  double sum() const {
    return compute + recompute + bubble + tensor + context + expert + pipeline + sharding +
           gradients + optimizer + other;
  }
};

// Bytes of one rank at the time of its peak.
struct Memory {
  double weights = 0, gradients = 0, optimizer = 0;
  double activations = 0;
  double transient = 0;      // Lives only while one block is computed; gathered weights; buckets.
  double fragmentation = 0;  // Allowance for what the allocator cannot use.
  double context = 0;        // Of the process and its libraries.
  double mapped = 0;         // Memory of other ranks of the host that it uses in place.
  double seconds = 0;        // Time of the peak, from the start of the step.
  double states() const { return weights + gradients + optimizer; }
  // What the framework allocates: all but the context.
  double allocated() const { return states() + activations + transient + fragmentation; }
  double total() const { return allocated() + context; }
  // What the system shows for the process.
  double resident() const { return total() + mapped; }
};

// One pipeline stage. With virtual stages, a rank has several.
struct StageReport {
  int first_block = 0, last_block = 0;  // Blocks [first, last).
  int rank = 0;                         // Along pp.
  double parameters = 0;                // Of one rank.
  double forward = 0, backward = 0;  // Seconds for one micro-batch, exposed communication included.
  double message = 0;                // Seconds of the message to the next stage.
};

struct Step {
  double seconds = 0;
  double samples_per_s = 0;
  double tokens_per_s = 0;      // 0 for images.
  double flops_per_device = 0;  // Model FLOP/s of one device.
  double hardware_flops = 0;    // The same, with recomputation.
  double mfu = 0;               // Of the devices' peak at the precision.
  Parts parts;
  std::vector<StageReport> stages;
  // By rank along pp, with the bytes of its device. Of unequal replicas, the one whose rank fills
  // most of its device.
  std::vector<Memory> memory;
  std::vector<double> capacity;
  bool fits = true;     // Every rank of every replica fits its own device.
  double short_by = 0;  // Most bytes that a rank lacks.
  // Bytes that a rank sends in a step, or reads in the memory of other ranks of its host: the mean
  // over the ranks of a replica.
  double traffic = 0;
  double joules = 0;   // 0: power unknown.
  double dollars = 0;  // Of a step; 0: price unknown.
  // Of the pipeline (one replica). `left_out`: further micro-batches of the steady state, which
  // the schedule leaves out.
  schedule::pipeline::Schedule schedule;
  schedule::pipeline::Timing timing;
  int left_out = 0;
  const Memory& peak() const;   // The rank with the most memory.
  std::size_t fullest() const;  // The rank along pp that fills most of its device.
};

// Throws Error(kInvalidArgument) as check(Layout) and blocks_of() do. A model of which only the
// number of parameters is known gets memory, and no time.
Step simulate_step(const Job& job);

}  // namespace weft::plan

// A pipeline schedule as data: the forwards and backwards of micro-batches that each rank runs, in
// order.
//
// A model is cut into ranks * virtual_stages stages, numbered as a sample passes them. A schedule
// is a pure function of the request. It determines the messages between ranks (messages.h), its
// time and idle share (play.h), its proof (proof.h) and its picture (pictures/pictures.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weft::schedule::pipeline {

enum class Algorithm : std::uint8_t {
  kGPipe,
  kOneForwardOneBackward,
  kInterleaved,
  kZeroBubbleH1,
  kZeroBubbleH2,
  kZeroBubbleV,
  kAutomatic,
  kForwardOnly
};

enum class Work : std::uint8_t {
  kForward,
  // Both of the following at once.
  kBackward,
  // Gradient of the stage's input. The previous stage waits for it.
  kBackwardInput,
  // Gradient of the stage's weights. Nothing waits for it.
  kBackwardWeight
};

// One computation: the work of one micro-batch in one stage.
struct Action {
  Work work = Work::kForward;
  int micro_batch = 0;
  int stage = 0;
  bool operator==(const Action&) const = default;
};

// Time of an action, in any unit, for one micro-batch in one of the stages. Two virtual stages thus
// cost half of one each. A backward takes the time of both parts. A message overlaps with the
// computation of both its ranks.
struct Costs {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double message = 0;
};

struct Request {
  Algorithm algorithm = Algorithm::kOneForwardOneBackward;
  int ranks = 1;
  int micro_batches = 1;
  int virtual_stages = 1;  // Stages of each rank.
  // Costs for which kAutomatic optimizes, and by which messages are ordered. Other algorithms run
  // the same actions at any cost.
  Costs costs = {};
  // Most micro-batches that a rank may hold, for kAutomatic (most_held()). 0: as many as
  // kZeroBubbleH2.
  int memory = 0;
};

// Actions of each rank, in order. In all algorithms the backwards of a stage come by rising
// micro-batch. Gradients are thus summed in the same order and have the same bits under every
// schedule.
struct Schedule {
  Request request;
  std::vector<std::vector<Action>> actions;  // Actions, by rank.
};

// Makes the schedule of an algorithm. p = ranks, m = micro_batches, v = virtual_stages, r the rank.
// f, b, w are the forward, backward_input and backward_weight of Costs. A stage holds a micro-batch
// from its forward to the end of its backward (of its backward-weight where that is separate). Idle
// shares are play()'s, with no time for messages.
//
//   kGPipe         All forwards, then all backwards. v > 1: one stage of the rank after the other.
//                  Holds vm. Idle (p-1)/(vm+p-1) if m >= p or v = 1. Huang and others: GPipe,
//                  2019; v > 1: Lamy-Poirier: Breadth-first pipeline parallelism, 2023.
//   kOneForwardOneBackward
//                  v = 1. Runs backwards as soon as possible. As idle as GPipe, holds min(m, p-r).
//                  Narayanan and others: Memory-efficient pipeline-parallel DNN training
//                  (PipeDream-flush), 2021.
//   kInterleaved   v >= 2, any m. Groups of g >= p micro-batches go through all stages of the
//                  rank. m is cut into max(1, m/p) groups that differ by at most one, G the
//                  largest. m < p: the order for m = p, without the missing micro-batches. Idle
//                  (p-1)/(vm+p-1) if m >= p; holds min(vm, (v-1)G + 2(p-r-1) + 1). Narayanan and
//                  others: Efficient large-scale language model training on GPU clusters using
//                  Megatron-LM, 2021.
//   kZeroBubbleH1  v = 1. 1F1B, with the backward-weights of the first r micro-batches at the end.
//                  Bubble (p-1)(f+b-w), holds min(m, p).
//   kZeroBubbleH2  v = 1. More forwards before the first backward. Bubble (p-1)(f+b-2w), holds
//                  min(m, 2p-1). The bubbles of H1 and H2 are parts of Timing::iteration, for
//                  b = f = w and m >= 2p-1. Qi, Wan, Huang, Lin: Zero bubble pipeline
//                  parallelism, 2023, section 2.
//   kZeroBubbleV   v = 2, stages in a V: rank r has r and 2p-1-r. No bubble for b = f = w and
//                  m >= 2p-1. Holds min(2m, 2p) half stages, as much as 1F1B's first rank. The
//                  same paper, section 6.
//   kAutomatic     v = 1. The shortest iteration for the given costs and memory, among 1F1B, H1
//                  and H2 where they fit and a greedy scheduler's result. The same paper, section
//                  3.1. Takes milliseconds for 8 ranks, a second for 64.
//   kForwardOnly   Evaluation: forwards in GPipe's order. Holds nothing.
//
// Throws Error(kInvalidArgument) for a request that the algorithm does not support, naming what it
// supports; for numbers below 1, more than 4096 ranks or 100 million actions; for costs that are
// not positive or more than a million times apart.
Schedule make(const Request& request);

// Number of stages, which is ranks * virtual_stages, and the rank of a stage.
int num_stages(const Request& request);
int rank_of(const Request& request, int stage);

// Most micro-batches, counted once for each stage, that a rank holds at once: the formulas above.
int most_held(const Request& request, int rank);

// Text for sentences: "forward of micro-batch 3 in stage 1".
std::string describe(const Action& action);

// True if the algorithm has backwards in two parts.
bool splits_backward(Algorithm algorithm);

// All algorithms, in the order of the enum.
std::span<const Algorithm> algorithms();
// "gpipe", "1f1b", "interleaved", "zb_h1", "zb_h2", "zb_v", "automatic", "forward_only".
const char* to_string(Algorithm algorithm);
const char* to_string(Work work);
// Parses what to_string() gives. Throws Error(kInvalidArgument), naming the nearest known name or
// all of them.
Algorithm parse_algorithm(const std::string& name);

}  // namespace weft::schedule::pipeline

// A pipeline schedule as data: which forwards and backwards of which micro-batch each rank does, in which order.
//
// A model is cut into ranks * virtual_stages stages, numbered as a sample passes them. A schedule is a pure function of the request; what
// ranks must send each other follows from it (messages.h), so do its time and idle share (play.h), its proof (proof.h) and picture
// (show.h).
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
  kBackward,       // both of the following at once
  kBackwardInput,  // the gradient of the stage's input, which the stage before waits for
  kBackwardWeight  // the gradient of its weights, which nobody waits for
};

// Of one micro-batch in one stage.
struct Action {
  Work work = Work::kForward;
  int micro_batch = 0;
  int stage = 0;
  bool operator==(const Action&) const = default;
};

// What an action takes, in any unit: of one micro-batch in one of the stages, so that two virtual stages cost half of one each. A backward
// takes both parts. A message takes its time beside the computation of both its ranks.
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
  int virtual_stages = 1;  // stages of each rank
  Costs costs = {};        // what kAutomatic is made for, and in whose order messages stand; others do the same actions at any cost
  int memory = 0;          // kAutomatic: micro-batches that a rank may hold at most (most_held()); 0: as many as kZeroBubbleH2
};

// What each rank does, in order. Whichever the algorithm, the backwards of a stage come by rising micro-batch: gradients are summed in the
// same order, so that they have the same bits under every schedule.
struct Schedule {
  Request request;
  std::vector<std::vector<Action>> actions;  // by rank
};

// p = ranks, m = micro_batches, v = virtual_stages, r the rank. A micro-batch is held by a stage from its forward to the end of its
// backward (of its backward-weight where that is apart); idle shares are play()'s, with f, b, w of Costs and no time for messages.
//   kGPipe         all forwards, then all backwards; v > 1: stage by stage of the rank. Holds vm. Idle (p-1)/(vm+p-1), where m >= p or v
//   = 1.
//                  Huang and others: GPipe, 2019; v > 1: Lamy-Poirier: Breadth-first pipeline parallelism, 2023.
//   kOneForwardOneBackward   v = 1. A backward as soon as there is one: as idle as GPipe, holds min(m, p-r).
//                  Narayanan and others: Memory-efficient pipeline-parallel DNN training (PipeDream-flush), 2021.
//   kInterleaved   v >= 2, any m. In groups of g >= p micro-batches that go through all stages of the rank; m is cut into max(1, m/p)
//                  groups that differ by one at most, G the largest; m < p is as m = p without those that are not there. Idle
//                  (p-1)/(vm+p-1) where m >= p; holds min(vm, (v-1)G + 2(p-r-1) + 1).
//                  Narayanan and others: Efficient large-scale language model training on GPU clusters using Megatron-LM, 2021.
//   kZeroBubbleH1  v = 1. 1F1B, with backward-weights of the first r micro-batches kept for the end. Bubble (p-1)(f+b-w), holds min(m, p).
//   kZeroBubbleH2  v = 1. More forwards before the first backward: bubble (p-1)(f+b-2w), holds min(m, 2p-1). The bubble of both is of
//                  Timing::iteration, for b = f = w and m >= 2p-1. Qi, Wan, Huang, Lin: Zero bubble pipeline parallelism, 2023, section 2.
//   kZeroBubbleV   v = 2, stages in a V: rank r has r and 2p-1-r. No bubble for b = f = w and m >= 2p-1, holds min(2m, 2p) half
//                  stages, as much as 1F1B's first rank. The same paper, section 6.
//   kAutomatic     v = 1. The shortest iteration for the given costs and memory of what a greedy scheduler finds and of 1F1B, H1 and H2
//                  where they fit (the same paper, section 3.1). Milliseconds for 8 ranks, a second for 64.
//   kForwardOnly   evaluation: forwards in GPipe's order; holds nothing.
// Throws Error(kInvalidArgument) for what an algorithm cannot do, naming what can; for numbers below 1, more than 4096 ranks or 100
// million actions, and for costs that are not positive or more than a million times apart.
Schedule make(const Request& request);

// ranks * virtual_stages, and whose a stage is.
int num_stages(const Request& request);
int rank_of(const Request& request, int stage);

// The most micro-batches, counted once for each stage, that a rank holds at once: the formulas above.
int most_held(const Request& request, int rank);

// "forward of micro-batch 3 in stage 1", for sentences.
std::string describe(const Action& action);

// Whether the algorithm has backwards in two parts.
bool splits_backward(Algorithm algorithm);

// All there are, in the order of the enum, for loops over them.
std::span<const Algorithm> algorithms();
// "gpipe", "1f1b", "interleaved", "zb_h1", "zb_h2", "zb_v", "automatic", "forward_only".
const char* to_string(Algorithm algorithm);
const char* to_string(Work work);
// Parses what to_string gives; throws Error(kInvalidArgument) naming the nearest known name, or all of them.
Algorithm parse_algorithm(const std::string& name);

}  // namespace weft::schedule::pipeline

#include "tools/docs/internal/pipeline_words.h"

#include <algorithm>
#include <string>

#include "weft/base/error.h"

namespace weft::docs::internal {
namespace {

using schedule::pipeline::Algorithm;

constexpr const char* kZeroBubblePaper =
    "Qi, Wan, Huang, Lin: Zero bubble pipeline parallelism, 2023";

constexpr PipelineWords kWords[] = {
    {Algorithm::kGPipe,
     "All forwards, then all backwards. With several stages on a rank it is breadth-first: "
     "all micro-batches go through the first stage of the rank, then all through the second "
     "one.",
     "Huang and others: GPipe: Efficient training of giant neural networks using pipeline "
     "parallelism, 2019; several stages: Lamy-Poirier: "
     "Breadth-first pipeline parallelism, 2023",
     "idle (p-1)/(vm+p-1), where m ≥ p or v = 1", "vm", "2m(vp-1)",
     "It is for few micro-batches, or with activation checkpointing."},
    {Algorithm::kOneForwardOneBackward,
     "A rank starts a backward as soon as one is possible. So it never holds more "
     "micro-batches than there are ranks from it to the last one.",
     "Narayanan, Phanishayee, Shi, Chen, Zaharia: Memory-efficient pipeline-parallel DNN training, "
     "2021 (PipeDream-flush)",
     "idle (p-1)/(m+p-1)", "min(m, p-r)", "2m(p-1)",
     "Begin with it: least memory, fewest messages, whole backwards."},
    {Algorithm::kInterleaved,
     "1F1B with v stages on each rank. Micro-batches pass through them in groups of p or "
     "more, so the pipeline fills in 1/v of the time. Any number of micro-batches is possible.",
     "Narayanan and others: Efficient large-scale language model training on GPU clusters using "
     "Megatron-LM, 2021",
     "idle (p-1)/(vm+p-1), where m ≥ p", "min(vm, (v-1)G + 2(p-r-1) + 1), G the largest group",
     "2m(vp-1)", "It is for fast links and few micro-batches."},
    {Algorithm::kZeroBubbleH1,
     "1F1B with backwards in two parts. Other ranks wait only for the gradient of the input. "
     "Rank r keeps r gradients of weights for the end, where they fill its idle time.",
     kZeroBubblePaper, "bubble (p-1)(f+b-w) where f = b = w", "min(m, p)", "2m(p-1)",
     "It is for models whose backward can be split. Each rank needs the memory of 1F1B's "
     "first rank."},
    {Algorithm::kZeroBubbleH2,
     "Each rank starts enough forwards so that it does not wait for its first backward. Ranks "
     "begin and end one after the other. They have no idle time only if they go on to the "
     "next iteration without waiting for each other.",
     kZeroBubblePaper, "bubble (p-1)(f+b-2w) where f = b = w and m ≥ 2p-1", "min(m, 2p-1)",
     "2m(p-1)",
     "It is for ranks with twice the memory. Gradient clipping by the norm over all stages "
     "makes ranks wait, so the idle time returns."},
    {Algorithm::kZeroBubbleV,
     "Two stages on each rank, in a V. The rank that begins a micro-batch also ends it, so no "
     "rank waits for its first gradient.",
     kZeroBubblePaper, "bubble 0 where f = b = w and m ≥ 2p-1", "min(2m, 2p) of half the size",
     "4m(p-1)", "It has the bubble of H2 with half of the memory and twice the messages."},
    {Algorithm::kAutomatic,
     "A search for given costs and memory. It runs a greedy scheduler with several settings, "
     "and takes the shortest iteration among its results and 1F1B, H1 and H2, if these fit.",
     "the heuristic of section 3.1 of Qi, Wan, Huang, Lin: Zero bubble pipeline parallelism, 2023",
     "at most that of 1F1B, H1 and H2, if they fit", "the given limit; 2p-1 by default", "2m(p-1)",
     "It is for measured costs, which are rarely equal."},
    {Algorithm::kForwardOnly, "Forwards only.", "the first half of GPipe",
     "idle (p-1)/(vm+p-1), where m ≥ p or v = 1", "0", "m(vp-1)",
     "It is for evaluation and inference."},
};

}  // namespace

const char* const kPipelines = R"(# Pipeline schedules

This page describes every schedule of `weft/schedule/pipeline`: how long its ranks are idle, what
they hold, what they send, and how it looks. `./dev docs` generates the page. It counts all figures
and draws all pictures from the schedules themselves. To see a schedule for your own numbers and
costs, run `weft schedule show SCHEDULE --stages P --micro-batches M`.

- p ranks, m micro-batches, v stages on each rank; r is the rank
- f, b and w: the time of a forward, of the backward of a stage's input, and of the backward of its
  weights; a whole backward takes b + w
- idle: the share of time in which ranks do nothing, over all ranks, from the first action of any
  rank to the last one
- bubble: how long the slowest rank waits between its own first and last action. It is the cost if
  ranks go on to the next iteration at once
- held: micro-batches that a rank has begun and whose backward (also of the weights) has not ended,
  counted once for each stage
- messages: the number of times that activations or gradients of one micro-batch cross a border of
  two ranks

All schedules sum the gradients of a stage in ascending order of micro-batches, so they give the
same bits. `weft/schedule/pipeline/proof.h` proves each schedule for 1 to 8 and 16 ranks, 1 to 32
micro-batches and 1 to 4 stages a rank: every action occurs once, no action comes before its
inputs, sends that wait for their receiver cannot deadlock, and no rank holds more than the formula.

## Side by side

Here f = b = w = 1 for all stages of a rank together, and messages take no time. "Held" is given in
shares of a rank's whole model, on the rank that holds most.

)";

const char* const kSlowMessages = R"(
With f = 1, b = 1.2, w = 0.8 for a rank, and 0.1 for every message:

)";

const char* const kMemory = R"(
More memory shortens the automatic schedule. Here it has 4 ranks, 12 micro-batches, f = 1, b = 1.4,
w = 0.6, and 0.2 for each message. 1F1B holds at most 4 micro-batches, H2 at most 7.

)";

const char* const kAfterwards = R"(
## Messages

`steps()` (`weft/schedule/pipeline/messages.h`) puts sends and receives between a rank's actions.
All ranks follow one global order of actions and messages. In it, a message is a single event
between the action that makes it and the action that needs it. The first event that is not done can
therefore always be done. So sends that wait for their receiver cannot deadlock, and no buffers are
needed.

## Stages

`weft/plan/mesh/stages.h` cuts a model into stages. It takes the time, memory and output size of
each block, and returns the contiguous partition whose slowest stage is fastest.
)";

const PipelineWords& words_of(Algorithm algorithm) {
  const auto found = std::find_if(std::begin(kWords), std::end(kWords),
                                  [&](const PipelineWords& w) { return w.algorithm == algorithm; });
  WEFT_CHECK(found != std::end(kWords),
             std::string("docs/pipelines.md has no words for ") + to_string(algorithm));
  return *found;
}

}  // namespace weft::docs::internal

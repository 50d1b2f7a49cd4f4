// What the ranks of a pipeline send each other, and in which order: activations to the rank of the
// next stage, gradients to that of the one before, nothing where both stages are the same rank's.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/schedule/pipeline/pipeline.h"

namespace weft::schedule::pipeline {

enum class Kind : std::uint8_t { kCompute, kSend, kReceive };

struct Step {
  Kind kind = Kind::kCompute;
  // of a message: the action whose result it carries (a forward's activations, the gradient of a
  // backward or backward-input)
  Action action;
  int peer = -1;  // -1: none
  bool operator==(const Step&) const = default;
};

// By rank: its actions with the messages between them.
//
// All lists are cuts through one order of everything, in which a message is a single event between
// the action that makes its content and the one that needs it. So they need no buffers: with sends
// that wait for their receiver (rendezvous) and everything done strictly in order, whatever is
// first in that order can always be done. Between two ranks messages match in order. A message
// stands where its content is ready, by play() with request.costs. With sends and receives that run
// by themselves, begin them where they stand and wait for a receive where its content is used: a
// rank then keeps at most waiting() messages that it has not used yet.
std::vector<std::vector<Step>> steps(const Schedule& schedule);

// The most messages that a rank has received and not yet used, by its list: what it holds beside
// most_held().
int waiting(const std::vector<Step>& steps_of_rank, const Request& request);

// In messages, each the activations or gradients of one micro-batch at the border of two stages.
struct Traffic {
  std::int64_t total = 0;
  std::int64_t busiest = 0;  // sent by the rank that sends most
  bool operator==(const Traffic&) const = default;
};
Traffic traffic(const Schedule& schedule);

}  // namespace weft::schedule::pipeline

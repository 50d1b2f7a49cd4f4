// The messages between the ranks of a pipeline, and their order. Activations go to the rank of the
// next stage, gradients to the rank of the previous stage. Two stages of the same rank exchange no
// messages.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/schedule/pipeline/pipeline.h"

namespace weft::schedule::pipeline {

enum class Kind : std::uint8_t { kCompute, kSend, kReceive };

struct Step {
  Kind kind = Kind::kCompute;
  // For a message: the action whose result it carries (the activations of a forward, the gradient
  // of a backward or backward-input).
  Action action;
  int peer = -1;  // Other rank of a message; -1 for kCompute.
  bool operator==(const Step&) const = default;
};

// Returns each rank's actions with its messages between them, by rank.
//
// All lists follow one global order. In it, a message is a single event between the action that
// makes its content and the action that needs it. So the lists need no buffers: if sends wait for
// their receiver (rendezvous) and ranks work strictly in order, the first event left in the global
// order can always run. Messages between two ranks match in order. A message stands where its
// content is ready, by play() with request.costs. If sends and receives run asynchronously, start
// them where they stand, and wait for a receive where its content is used. A rank then keeps at
// most waiting() messages that it has not used yet.
std::vector<std::vector<Step>> steps(const Schedule& schedule);

// Most messages that a rank has received and not yet used, by its list. It holds them in addition
// to most_held().
int waiting(const std::vector<Step>& steps_of_rank, const Request& request);

// Numbers of messages. Each carries the activations or gradients of one micro-batch between two
// stages.
struct Traffic {
  std::int64_t total = 0;
  std::int64_t busiest = 0;  // Messages of the rank that sends most.
  bool operator==(const Traffic&) const = default;
};
Traffic traffic(const Schedule& schedule);

}  // namespace weft::schedule::pipeline

// Averaging with neighbors in place of all ranks: decentralized SGD over any group.
//
//   for (std::int64_t round = 0;; ++round) {                 // Lian and others: Can decentralized
//                                                            // algorithms outperform …, 2017
//     train_one_step(model);                                 // with this rank's own gradients
//     comm::gossip(group, model->parameters(), round, {.graph =
//     schedule::Graph::kOnePeerExponential});
//   }
//
// What a round sends and how fast it brings ranks together: schedule/gossip.h, docs/algorithms.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "weft/comm/group.h"
#include "weft/schedule/gossip.h"

namespace weft::comm {

struct GossipOptions {
  schedule::Graph graph = schedule::Graph::kExponential;
  std::uint64_t seed = 0;  // kRandomMatching: who meets whom
  int tag = 1 << 30;       // of its messages; user messages of another tag may be under way
};

// One round: each tensor becomes the weighted mean of itself and those of the ranks that this one
// hears (schedule::mixing), in place; the average over all ranks stays what it is, to rounding. All
// ranks call it with the same options, round, shapes and types; they need not come at the same
// time: a rank waits for its neighbors of the round only. Order of additions is that of the ranks,
// f16 and bf16 add in f32. Not part of autograd. Holds a copy of each tensor for every neighbor
// that is heard.
//
// Throws Error(kInvalidArgument) for what is not a dense floating tensor, a negative round, and on
// the rank that hears a tensor of another length; else what Group::recv throws (kTimeout,
// kPeerLost, kAborted): tensors are unchanged then.
void gossip(const Group& group, at::TensorList tensors, std::int64_t round,
            const GossipOptions& options = {});

// One round of messages only: sends `mine` (dense) to the ranks of mixing.sends_to, and returns
// what the ranks of mixing.hears send, in their order. `lengths` has the number of elements of each
// answer: a vector of the type of `mine`. If it is empty, answers have the shape of `mine`. Throws
// as gossip() does.
std::vector<at::Tensor> exchange_with_neighbors(const Group& group, const schedule::Mixing& mixing,
                                                const at::Tensor& mine,
                                                std::span<const std::int64_t> lengths = {},
                                                int tag = GossipOptions{}.tag);

}  // namespace weft::comm

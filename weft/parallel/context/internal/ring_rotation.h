// How the ranks of ring attention pass keys and values, and bring home their gradients: read in
// place where the ranks share a host's memory, else as messages.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "weft/parallel/context/attention.h"

namespace weft::parallel::internal {

// Values that backward needs besides tensors; one rank's view of the ring.
struct Ring final : torch::CustomClassHolder {
  Ring(const SequenceLayout& layout_, ContextAttentionOptions options_, const ContextParallel& cp_)
      : layout(layout_), options(std::move(options_)), cp(cp_), rank(cp.rank()), ranks(cp.size()) {}

  SequenceLayout layout;
  ContextAttentionOptions options;
  ContextParallel cp;
  int rank, ranks;

  int down() const { return (rank + ranks - 1) % ranks; }
  int up() const { return (rank + 1) % ranks; }
  // The rank whose keys `who` uses in a step, and their number: higher ranks do not use late
  // chunks.
  int owner(int who, int step) const { return (who + step) % ranks; }
  std::int64_t keys(int who, int step) const {
    const int from = owner(who, step);
    return options.causal && from < who ? layout.low(from).size : layout.length(from);
  }
  // This rank's queries with visible keys in the step: all, or those of its late chunk, [first,
  // end).
  std::int64_t first_query(int step) const {
    return options.causal && owner(rank, step) > rank ? layout.low(rank).size : 0;
  }
};

// Keys and values (or their gradients) of one rank: [positions, 2, batch, kv_heads, width], so that
// the first positions are one message.
struct Pack {
  at::Tensor both;

  static Pack like(const at::Tensor& k, std::int64_t positions, at::ScalarType type) {
    return {at::empty({positions, 2, k.size(0), k.size(1), k.size(3)},
                      k.options().dtype(type).requires_grad(false))};
  }
  // [batch, kv_heads, positions, width]
  at::Tensor k() const { return both.select(1, 0).permute({1, 2, 0, 3}); }
  at::Tensor v() const { return both.select(1, 1).permute({1, 2, 0, 3}); }
};

using KeysAndValues = std::pair<at::Tensor, at::Tensor>;

// One rotation of keys and values around the ring, in a forward or backward pass. Collective.
// Throws as Group's operations do.
class RingRotation {
 public:
  virtual ~RingRotation() = default;

  // The keys and values of a step, valid until the next call. Call it for 1, 2, …
  virtual KeysAndValues next(int step) = 0;
  // Gives the gradients of a step's keys to their owner, and adds to `own` what others have given.
  virtual void hand_on(int step, const Pack& found, const Pack& own) = 0;
  // After the last step: adds what is still missing in `own`.
  virtual void collect(const Pack& own) = 0;
  // Waits until no other rank uses this rank's tensors.
  virtual void finish() = 0;
};

enum class Pass { kForward, kBackward };

std::unique_ptr<RingRotation> rotate_by_messages(const Ring& ring, const KeysAndValues& mine,
                                                 Pass pass);

// Memory that the ranks of one host share: each publishes there what the others read. One thread of
// a rank uses it at a time.
class HostRing;
// Collective.
std::shared_ptr<HostRing> make_host_ring(const Group& group);
std::unique_ptr<RingRotation> rotate_in_place(HostRing& host, const Ring& ring,
                                              const KeysAndValues& mine, Pass pass);

}  // namespace weft::parallel::internal

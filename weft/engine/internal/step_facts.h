// What ranks that send gradients as messages tell each other at the start of a step: how many
// samples each has, how it changed its module, which models its backward() has reached together,
// and the number of this one.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

#include "weft/comm/group.h"
#include "weft/engine/internal/transport.h"

namespace weft::engine::internal {

class StepFacts {
 public:
  // `context` must outlive it.
  explicit StepFacts(const TransportContext& context) : context_(context) {}

  // Sends those of this rank, while its gradients become ready.
  void send();
  // This rank's factor for its gradients. The first call after send() waits for the others, adds
  // the seconds to `waited`, and throws Error(kInvalidArgument) if a rank is at another model.
  double factor(double& waited);

  // As Transport::alike() and Transport::apart(). After factor().
  bool alike() const { return alike_; }
  const std::optional<std::pair<int, int>>& apart() const { return apart_; }

 private:
  void take();
  [[noreturn]] void refuse_other_model(int peer) const;

  const TransportContext& context_;
  at::Tensor mine_, all_;
  Group::Work work_;  // null: they have been taken
  bool alike_ = true;
  std::optional<std::pair<int, int>> apart_;
  double factor_ = 1;
};

}  // namespace weft::engine::internal

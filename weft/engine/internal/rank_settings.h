// What the ranks must have alike besides values: the learning rate, the number of steps, train() or
// eval() of each module, the kinds of buffers, and what their gradients are.
//
// A step sends a hash of them with the digest of other changes (module_watch.h). Only if it differs
// between ranks do they look for the difference.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/comm/group.h"
#include "weft/engine/block.h"

namespace weft::engine::internal {

// The gradients of a rank in a step.
struct GradientFacts {
  bool unknown_samples = false;  // of passes whose samples nobody has told
  bool added = false;            // added to sums of the ranks that zero_grad() has not dropped
  int dropped = 0;               // batches whose gradients zero_grad() dropped before these
};

class RankSettings {
 public:
  explicit RankSettings(const std::vector<Block>& blocks);
  // Of weft's optimizer.
  struct Progress {
    double lr = 0;
    std::int64_t steps = 0;
  };
  void watch_optimizer(std::function<Progress()> now) { optimizer_ = std::move(now); }

  // Notes the settings of now, and returns a hash of them.
  std::uint64_t note(GradientFacts gradients);
  // Throws Error(kInvalidArgument) on all ranks if the noted settings differ, with the first
  // difference. Collective.
  void compare(const Group& group) const;

 private:
  std::uint64_t hash_of_modules() const;
  std::string modules() const;

  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> modules_;
  std::vector<std::pair<std::string, at::Tensor>> buffers_;
  std::function<Progress()> optimizer_;  // null: there is none
  Progress progress_;
  GradientFacts gradients_;
  std::uint64_t hash_ = 0;  // of modules and buffers
};

}  // namespace weft::engine::internal

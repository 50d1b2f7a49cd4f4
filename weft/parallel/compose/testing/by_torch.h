// Test helpers: the small model of tiny.h trained by torch::nn alone, in one process.
#pragma once

#include <torch/nn/utils/clip_grad.h>

#include <functional>
#include <string>
#include <vector>

#include "weft/parallel/compose/testing/reference.h"
#include "weft/parallel/compose/testing/tiny.h"

namespace weft::parallel::internal {

// The initial weights of all blocks, by name.
inline Named initial_weights(const Tiny& how) {
  const BlockModel model = tiny_model(how);
  Contexts with;
  Named weights;
  for (std::size_t i = 0; i < model.blocks.size(); ++i) {
    torch::manual_seed(block_seed(kSeed, static_cast<int>(i)));
    const Block block = model.blocks[i].make(with);
    with.before[model.blocks[i].name] = block.module;
    const bool tied_head = how.tied && i + 1 == model.blocks.size();
    for (const auto& item : block.module->named_parameters()) {
      if (!tied_head || item.key() != "tokens.weight")
        weights[model.blocks[i].name + "." + item.key()] = item.value();
    }
  }
  return weights;
}

inline reference::Options same_model(const Tiny& how) {
  return {.words = kWords,
          .width = how.width,
          .bodies = how.bodies,
          .tied = how.tied,
          .attends = how.attends,
          .experts = how.experts,
          .capacity = how.capacity,
          .balance = kBalance,
          .z = kZ};
}

// Trains by torch::nn alone (reference.h), in one process, on the whole batch. `group` assigns the
// parameters, by name, to optimizer groups.
template <class TorchOptimizer, class Options>
Trained by_torch(const Tiny& how, const Options& options, const Batches& batches = {},
                 const std::function<void(TorchOptimizer&, const Named&)>& group = nullptr) {
  EXPECT_EQ(how.dropout, 0) << "torch::nn draws other numbers";
  reference::Model model(same_model(how), initial_weights(how), how.type);
  Trained trained;
  trained.weights = model.parameters();
  std::vector<at::Tensor> all;
  for (const auto& [name, weight] : trained.weights) all.push_back(weight);
  TorchOptimizer optim(all, options);
  if (group) group(optim, trained.weights);
  for (int step = 0; step < kSteps; ++step) {
    optim.zero_grad();
    trained.losses.push_back(0);
    for (int i = 0; i < batches.micro_batches; ++i) {
      const at::Tensor x = batches.rows(tokens_of(step, 0, how.length), i),
                       y = batches.rows(tokens_of(step, 1, how.length), i);
      if (x.size(0) == 0) continue;
      const at::Tensor loss = model.loss(x, y) * (static_cast<double>(x.size(0)) / kSamples);
      loss.backward();
      trained.losses.back() += loss.item<double>();
    }
    trained.norms.push_back(torch::nn::utils::clip_grad_norm_(all, how.clip > 0 ? how.clip : 1e30));
    optim.step();
  }
  for (auto& [name, weight] : trained.weights) {
    trained.gradients[name] = weight.grad().clone();
    weight = weight.detach().clone();
  }
  return trained;
}

}  // namespace weft::parallel::internal

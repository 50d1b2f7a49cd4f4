// A weight that two stages have: its gradients are summed, and it counts once in the norm.
#include <torch/nn/functional.h>
#include <torch/nn/utils/clip_grad.h>

#include <chrono>
#include <future>
#include <stdexcept>

#include "weft/base/testing/refusal.h"
#include "weft/parallel/pipeline/testing/parity.h"

namespace weft::parallel {
namespace tied_test {

using pipeline_parity::Algorithm;
using pipeline_parity::input_of;
using pipeline_parity::Link;
using pipeline_parity::options_of;
using pipeline_parity::target_of;

// The first and the last block have one weight.
Block tied_block(int i) {
  const Link link(i == 3 ? 0 : i);
  Block block = engine::block(link);
  if (i == 0 || i == 3) block.tied["weight"] = link->layer->weight;
  return block;
}

// Two steps without zero_grad(): gradients, their norm, and the losses, on one process with one
// weight.
struct Tying {
  std::map<std::string, at::Tensor> gradients;
  double norm = 0;
};
Tying tied_on_one_process() {
  std::vector<Link> links;
  for (int i = 0; i < 4; ++i) links.emplace_back(i == 3 ? 0 : i);
  for (int step = 0; step < 2; ++step) {
    at::Tensor x = input_of(step);
    for (const Link& link : links) {
      // The last block uses the first one's weight.
      const bool shared = link.ptr() == links[3].ptr();
      x = x + torch::tanh(torch::nn::functional::linear(
                  x, (shared ? links[0] : link)->layer->weight, link->layer->bias));
    }
    torch::mse_loss(x, target_of(step)).backward();
  }
  Tying tying;
  std::vector<at::Tensor> all;
  for (std::size_t i = 0; i < 4; ++i) {
    for (const auto& p : links[i]->named_parameters()) {
      if (p.value().grad().defined()) all.push_back(p.value());
      tying.gradients[std::to_string(i) + "." + p.key()] = p.value().grad();
    }
  }
  tying.gradients["3.layer.weight"] = tying.gradients["0.layer.weight"];
  tying.norm = torch::nn::utils::clip_grad_norm_(all, 0.01);
  return tying;
}

TEST(Pipeline, SumsTiedGradientsAndClipsByTheNormOfTheWholeModel) {
  const Tying expected = tied_on_one_process();
  for (const auto& [algorithm, ranks] :
       std::map<Algorithm, int>{{Algorithm::kOneForwardOneBackward, 3},
                                {Algorithm::kZeroBubbleH1, 4},
                                {Algorithm::kInterleaved, 2},
                                // The first and the last block are on rank 0.
                                {Algorithm::kZeroBubbleV, 2}}) {
    replicate(ranks, [&, algorithm = algorithm](const Group& group) {
      Pipeline model(group, 4, tied_block, options_of(algorithm, 2));
      for (int step = 0; step < 2; ++step) model.train_step({input_of(step)}, {target_of(step)});
      EXPECT_NEAR(model.clip_grad_norm(0.01), expected.norm, 1e-10);
      for (const auto& [name, p] : model.named_parameters()) {
        EXPECT_TRUE(torch::allclose(p.grad(), expected.gradients.at(name), 1e-10, 1e-12))
            << schedule::pipeline::to_string(algorithm) << " " << name;
      }
    });
  }
}

// Two blocks of a rank may have one module, whose weights they may call tied.
TEST(Pipeline, AParameterOfTwoBlocksOfARankCountsOnce) {
  for (const bool is_tied : {false, true}) {
    std::vector<Link> links{Link(0), Link(1)}, own{Link(0), Link(1)};
    at::Tensor x = input_of(0);
    for (const std::size_t i : {0U, 1U, 0U}) x = links[i](x);
    torch::mse_loss(x, target_of(0)).backward();
    std::vector<at::Tensor> all = links[0]->parameters();
    for (const at::Tensor& p : links[1]->parameters()) all.push_back(p);
    const double norm = torch::nn::utils::clip_grad_norm_(all, 0.01);
    replicate(1, [&](const Group& group) {
      const auto make = [&](int i) {
        Block block = engine::block(own[i == 1 ? 1 : 0]);
        if (is_tied && i != 1) block.tied["weight"] = own[0]->layer->weight;
        return block;
      };
      Pipeline model(group, 3, make, options_of(Algorithm::kOneForwardOneBackward, 2));
      model.train_step({input_of(0)}, {target_of(0)});
      EXPECT_NEAR(model.clip_grad_norm(0.01), norm, 1e-10);
      const auto mine = model.parameters();
      ASSERT_EQ(mine.size(), all.size());
      for (std::size_t i = 0; i < all.size(); ++i)
        EXPECT_TRUE(torch::allclose(mine[i].grad(), all[i].grad(), 1e-10, 1e-12)) << i << is_tied;
    });
  }
}

// A frozen weight keeps the gradient that it has, or none, and no optimizer moves it.
TEST(Pipeline, ATiedWeightWithoutANewGradientKeepsThatOfBefore) {
  for (const auto& [algorithm, ranks] : std::map<Algorithm, int>{
           {Algorithm::kOneForwardOneBackward, 3}, {Algorithm::kZeroBubbleV, 2}}) {
    for (const bool trained_before : {false, true}) {
      replicate(ranks, [&, algorithm = algorithm](const Group& group) {
        Pipeline model(group, 4, tied_block, options_of(algorithm, 2));
        if (trained_before) model.train_step({input_of(0)}, {target_of(0)});
        std::map<std::string, at::Tensor> before;
        for (auto& [name, p] : model.named_parameters()) {
          if (name != "0.layer.weight" && name != "3.layer.weight") continue;
          if (p.grad().defined()) before[name] = p.grad().clone();
          p.requires_grad_(false);
        }
        model.train_step({input_of(1)}, {target_of(1)});
        for (const auto& [name, p] : model.named_parameters()) {
          if (p.requires_grad()) continue;
          EXPECT_EQ(p.grad().defined(), trained_before) << name;
          EXPECT_TRUE(!trained_before || torch::equal(p.grad(), before.at(name))) << name;
        }
      });
    }
  }
}

// The ranks that share the weight sum its gradients in a group of their own.
TEST(Pipeline, ARankThatFailsEndsTheSumOfTiedGradients) {
  std::promise<void> told;
  const auto all_told = told.get_future().share();
  const auto run = [&](const Group& group) {
    PipelineOptions options = options_of(Algorithm::kOneForwardOneBackward, 1);
    // The last action of the first rank. The other rank waits for nothing but the sum then.
    options.after = [&](const schedule::pipeline::Action& action) {
      if (group.rank() == 0 && action.work == schedule::pipeline::Work::kBackward)
        throw std::runtime_error("as asked");
    };
    Pipeline model(group, 4, tied_block, options);
    const auto step = [&] { model.train_step({input_of(0)}, {target_of(0)}); };
    if (group.rank() == 0) {
      EXPECT_THROW(step(), std::runtime_error);
      // With groups that still live.
      EXPECT_EQ(all_told.wait_for(std::chrono::seconds(20)), std::future_status::ready);
      return;
    }
    expect_refused(step, Errc::kAborted, "as asked");
    told.set_value();
  };
  replicate(2, run, std::chrono::seconds(30));
}

}  // namespace tied_test
}  // namespace weft::parallel

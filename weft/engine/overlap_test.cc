// Transfers that overlap the next forward, and tuned buckets, give the same bits as waiting in
// step().
#include <gtest/gtest.h>
#include <torch/nn/functional.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstring>

#include "weft/comm/testing/fork_ranks.h"
#include "weft/engine/data_parallel.h"
#include "weft/engine/internal/weight_guard.h"
#include "weft/engine/testing/small_model.h"

namespace weft::engine {
namespace overlap_test {

using small_model::require;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 4; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(24, 24)));
    norm = register_module("norm", torch::nn::BatchNorm1d(24));
    unused = register_module("unused", torch::nn::Linear(3, 3));
    small_model::fill(*this);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers) x = torch::relu(layer(x)) + x;
    return norm(x);
  }
  std::vector<torch::nn::Linear> layers;
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear unused{nullptr};
};
TORCH_MODULE(Net);

using Model = DataParallel<NetImpl>;

DataParallelOptions small_buckets(bool overlap) {
  DataParallelOptions options;
  options.bucket_bytes = options.first_bucket_bytes = 3000;
  options.overlap_forward = overlap;
  return options;
}

void backward(Model& model, const Group& group, int number) {
  const auto x = (torch::arange(8 * 24, torch::kFloat) * 0.37 +
                  static_cast<double>(number * group.size() + group.rank()))
                     .sin();
  const auto y = (torch::arange(8) + number).remainder(24);
  torch::nn::functional::cross_entropy(model.forward(x.view({8, 24})), y).backward();
}

struct Outcome {
  torch::Tensor weights, state;
};
Outcome train(const Group& group, const DataParallelOptions& options, int steps) {
  auto model = data_parallel(Net(), group, options);
  auto optim =
      model.optimizer<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  for (int number = 0; number < steps; ++number) {
    // Applies to the next step, not to the one whose transfers are pending.
    optim.set_lr(0.01 / (1 + number));
    backward(model, group, number);
    optim.step();
    optim.zero_grad();
  }
  Outcome outcome;
  std::vector<torch::Tensor> state, weights;
  for (const auto& [name, tensor] : optim.state())
    state.push_back(tensor.flatten().to(torch::kDouble));
  for (const auto& tensor : model->parameters()) weights.push_back(tensor.detach().flatten());
  for (const auto& tensor : model->buffers()) weights.push_back(tensor.flatten().to(torch::kFloat));
  return {torch::cat(weights), torch::cat(state)};
}

int compare_with_waiting(const Group& group) {
  torch::set_num_threads(1);
  for (const char* codec : {"none", "bf16", "int8:64", "topk:0.1", "powersgd:2"}) {
    auto options = small_buckets(false);
    options.codec = codec;
    const Outcome waited = train(group, options, 9);
    options.overlap_forward = true;
    const Outcome overlapped = train(group, options, 9);
    require(torch::equal(waited.weights, overlapped.weights),
            std::string(codec) + ": other weights");
    require(torch::equal(waited.state, overlapped.state), std::string(codec) + ": another state");
  }
  return 0;
}

TEST(OverlapForward, GivesTheSameBitsAsWaitingInStep) {
  for (int world : {2, 3}) {
    EXPECT_EQ(comm::fork_ranks(world, "tcp", compare_with_waiting),
              std::vector<int>(static_cast<std::size_t>(world), 0));
  }
}

TEST(OverlapForward, GivesTheSameBitsOverHostsOfSeveralRanks) {
  EXPECT_EQ(comm::fork_ranks(3, "auto", compare_with_waiting, {"a", "b", "a"}),
            (std::vector<int>{0, 0, 0}));
}

// A sum over two ranks has two terms, so no bit of it depends on its bucket.
TEST(TunedBuckets, GiveTheSameBitsAsFixedBuckets) {
  const auto codes = comm::fork_ranks(2, "tcp", [](const Group& group) {
    torch::set_num_threads(1);
    auto options = small_buckets(false);
    const Outcome fixed = train(group, options, 12);
    options.bucket_bytes = 0;
    for (bool overlap : {false, true}) {
      options.overlap_forward = overlap;
      require(torch::equal(train(group, options, 12).weights, fixed.weights), "other weights");
    }
    return 0;
  });
  EXPECT_EQ(codes, (std::vector<int>{0, 0}));
}

// step() waits while the first steps are timed.
constexpr int kUntilTuned = 6;

int read_weights_after_step(const Group& group) {
  torch::set_num_threads(1);
  auto model = data_parallel(Net(), group, small_buckets(true));
  auto optim = model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
  for (int number = 0; number < kUntilTuned; ++number) {
    backward(model, group, number);
    optim.step();
    optim.zero_grad();
  }
  model.wait_for_weights();
  const torch::Tensor front = model->layers[0]->weight, last = model->layers[3]->weight;
  const torch::Tensor front_before = front.detach().clone(), last_before = last.detach().clone();
  const auto same = [](const torch::Tensor& a, const torch::Tensor& b) {
    return std::memcmp(a.const_data_ptr(), b.const_data_ptr(),
                       static_cast<std::size_t>(a.numel()) * sizeof(float)) == 0;
  };
  backward(model, group, kUntilTuned);
  optim.step();
  require(same(front, front_before) && same(last, last_before), "step() has waited");
  require(!torch::equal(front, front_before), "an operation got the weights of the step before");
  require(!same(front, front_before), "the weights are those of the step before");
  model.wait_for_weights();
  require(!same(last, last_before), "wait_for_weights() did not wait");
  return 0;
}

TEST(OverlapForward, UpdatesAWeightBeforeTheFirstOperationOnIt) {
  EXPECT_EQ(comm::fork_ranks(2, "tcp", read_weights_after_step), (std::vector<int>{0, 0}));
}

// Changes the last weight while its update is pending. `view` is one from before the step.
struct Written {
  std::string error;
  torch::Tensor weight;
};
Written write_after_step(
    const Group& group, bool waits,
    const std::function<void(torch::Tensor& weight, torch::Tensor& view)>& write) {
  auto model = data_parallel(Net(), group, small_buckets(true));
  auto optim = model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
  torch::Tensor weight = model->layers[3]->weight, view = weight.detach().view({-1});
  for (int number = 0; number <= kUntilTuned; ++number) {
    optim.zero_grad();
    backward(model, group, number);
    optim.step();
  }
  if (waits) model.wait_for_weights();
  const torch::NoGradGuard no_grad;
  write(weight, view);
  Written written;
  try {
    model.wait_for_weights();
  } catch (const Error& error) {
    written.error = error.what();
  }
  written.weight = weight.detach().clone();
  return written;
}

int write_weights_after_step(const Group& group) {
  torch::set_num_threads(1);
  const auto by_data = [](torch::Tensor& weight, torch::Tensor&) { weight.data().fill_(2); };
  const auto by_view = [](torch::Tensor&, torch::Tensor& view) { view.fill_(2); };
  const auto by_operation = [](torch::Tensor& weight, torch::Tensor&) { weight.fill_(2); };
  const auto is_kept = [](const Written& written) {
    return written.error.empty() && written.weight.eq(2).all().item<bool>();
  };
  require(is_kept(write_after_step(group, false, by_operation)), "an operation came too early");
  require(is_kept(write_after_step(group, true, by_data)), "data() after wait_for_weights()");
  require(is_kept(write_after_step(group, true, by_view)), "a view after wait_for_weights()");
  // The first rank that notices it ends the waits of the other.
  const auto is_refused = [](const Written& written) {
    return written.error.find("'layer3.weight' was changed between step() and its update") !=
               std::string::npos &&
           written.error.find("call wait_for_weights() before") != std::string::npos;
  };
  const Group other = group.duplicate("by_view");
  require(is_refused(write_after_step(group, false, by_data)), "data() was not noticed");
  require(is_refused(write_after_step(other, false, by_view)), "a view was not noticed");
  return 0;
}

TEST(OverlapForward, RefusesAWeightWrittenBeforeItsDelayedUpdate) {
  EXPECT_EQ(comm::fork_ranks(2, "tcp", write_weights_after_step), (std::vector<int>{0, 0}));
}

// Rank 1 ends while its last gradients are in transfer. The next call of rank 0 that can throw
// reports it.
int lose_a_peer(const Group& group) {
  torch::set_num_threads(1);
  auto model = data_parallel(Net(), group, small_buckets(true));
  auto optim = model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
  try {
    for (int number = 0; number < kUntilTuned + 3; ++number) {
      if (group.rank() == 1 && number == kUntilTuned + 1) _exit(0);
      backward(model, group, number);
      optim.step();
      optim.zero_grad();
    }
  } catch (const Error& error) {
    return error.code() == Errc::kPeerLost || error.code() == Errc::kAborted ? 0 : 2;
  }
  return 1;
}

TEST(OverlapForward, ThrowsIfAPeerIsLost) {
  EXPECT_EQ(comm::fork_ranks(2, "tcp", lose_a_peer), (std::vector<int>{0, 0}));
}

TEST(WeightGuard, SeesTensorsInEveryKindOfArgument) {
  const std::vector<torch::Tensor> params{torch::ones({2, 2}, torch::requires_grad()),
                                          torch::ones({2}),
                                          torch::ones({2}),
                                          torch::ones({2, 2}),
                                          torch::zeros({1}, torch::kLong),
                                          torch::ones({3})};
  std::vector<int> seen;
  internal::WeightGuard guard(params, [&](int param) { seen.push_back(param); });
  torch::relu(params[0]);
  EXPECT_TRUE(seen.empty());
  guard.arm();
  torch::linear(torch::ones({1, 2}), params[0], params[1]);  // an argument, an optional one
  torch::cat({torch::ones({2}), params[2]});                 // a list
  {
    const torch::InferenceMode inference;
    torch::ones({4, 4}).index({params[4]});  // a list of optional ones
  }
  params[3].view({4});
  torch::relu(params[0]);
  EXPECT_EQ(seen, (std::vector<int>{0, 1, 2, 4, 3}));  // each once
  guard.disarm();
  torch::relu(params[5]);
  EXPECT_EQ(seen.size(), 5u);
  guard.arm();
  torch::relu(params[0]);
  EXPECT_EQ(seen.size(), 6u);
}

TEST(WeightGuard, StaysOneObserverWhenBackwardDisarmsItRepeatedly) {
  torch::nn::Linear layer(2, 2);
  int uses = 0;
  internal::WeightGuard guard(layer->parameters(), [&](int) { ++uses; });
  for (auto& p : layer->parameters())
    p.register_hook([&](const torch::Tensor& gradient) {
      guard.disarm();
      return gradient;
    });
  for (int step = 0; step < 20; ++step) {
    guard.arm();
    layer(torch::ones({1, 2})).sum().backward();
  }
  EXPECT_EQ(uses, 2 * 20);
  const auto observers = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
  ASSERT_TRUE(observers);
  EXPECT_EQ(observers->callbacks_.size(), 1u);
}

}  // namespace overlap_test
}  // namespace weft::engine

#include "weft/engine/data_parallel.h"

#include <gtest/gtest.h>
#include <torch/nn/functional.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "weft/comm/replicate.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/engine/testing/small_model.h"

namespace weft::engine {
namespace data_parallel_test {

using namespace std::chrono_literals;
using comm::replicate;

// A small net with weights, biases, a buffer, and a layer that a rank may skip.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(6, 40));
    norm = register_module("norm", torch::nn::BatchNorm1d(40));
    extra = register_module("extra", torch::nn::Linear(40, 40));
    last = register_module("last", torch::nn::Linear(40, 3));
    small_model::fill(*this);
  }
  torch::Tensor forward(const torch::Tensor& x, bool with_extra = true) {
    auto h = torch::relu(first(x));
    if (use_norm) h = norm(h);
    if (with_extra) h = h + torch::tanh(extra(h));
    return last(h);
  }
  torch::nn::Linear first{nullptr}, extra{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  bool use_norm = false;
};
TORCH_MODULE(Net);

struct Data {
  torch::Tensor x, y;
};
Data batch(int64_t step, int64_t n) {
  auto x =
      (torch::arange(n * 6, torch::kFloat) * 0.37 + static_cast<double>(step)).sin().view({n, 6});
  return {x, (torch::arange(n) + step).remainder(3)};
}
Data part(const Data& all, int64_t begin, int64_t end) {
  return {all.x.slice(0, begin, end), all.y.slice(0, begin, end)};
}
torch::Tensor loss_of(const torch::Tensor& out, const torch::Tensor& y) {
  return torch::nn::functional::cross_entropy(out, y);
}

std::vector<torch::Tensor> weights_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> all;
  for (const auto& p : module.parameters()) all.push_back(p.detach().clone());
  return all;
}

void expect_close(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b,
                  double tolerance, const std::string& what) {
  if (a.size() != b.size()) throw std::runtime_error(what + ": another number of tensors");
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!torch::allclose(a[i], b[i], tolerance, tolerance)) {
      throw std::runtime_error(what + ": tensor " + std::to_string(i) + " differs by " +
                               std::to_string((a[i] - b[i]).abs().max().item<double>()));
    }
  }
}

constexpr int64_t kBatch = 11;
constexpr int kSteps = 6;

template <class TorchOptimizer, class Options>
std::vector<torch::Tensor> by_torch(const Options& options, double clip = 0) {
  Net net;
  TorchOptimizer optim(net->parameters(), options);
  for (int step = 0; step < kSteps; ++step) {
    const Data data = batch(step, kBatch);
    optim.zero_grad();
    loss_of(net->forward(data.x), data.y).backward();
    if (clip > 0) torch::nn::utils::clip_grad_norm_(net->parameters(), clip);
    optim.step();
  }
  return weights_of(*net);
}

int64_t begin_of(int rank, int world) { return kBatch * rank / world; }

// The same steps, with each rank on its part of the batch. The parts differ in size.
template <class TorchOptimizer, class Options>
std::vector<torch::Tensor> by_weft(const Group& group, const Options& options,
                                   const DataParallelOptions& how, double clip = 0) {
  auto model = data_parallel(Net(), group, how);
  auto optim = model.template optimizer<TorchOptimizer>(options, {.max_grad_norm = clip});
  for (int step = 0; step < kSteps; ++step) {
    const Data mine = part(batch(step, kBatch), begin_of(group.rank(), group.size()),
                           begin_of(group.rank() + 1, group.size()));
    loss_of(model.forward(mine.x), mine.y).backward();
    optim.step();
    optim.zero_grad();
  }
  group.barrier();
  return weights_of(*model);
}

template <class TorchOptimizer, class Options>
void compare(const Group& group, const Options& options, const std::string& what, double clip = 0) {
  const auto expected = by_torch<TorchOptimizer>(options, clip);
  for (const Weights weights : {Weights::kShared, Weights::kPrivate, Weights::kAuto}) {
    if (group.host() == nullptr && weights == Weights::kShared) continue;
    for (bool early : {false, true}) {
      DataParallelOptions how;
      how.weights = weights;
      how.update_in_backward = early;
      expect_close(by_weft<TorchOptimizer>(group, options, how, clip), expected, 2e-5,
                   what + " with weights " + to_string(weights));
    }
  }
}

// Biases have three times the learning rate, less momentum and no weight decay.
void compare_groups(const Group& group) {
  const auto options = torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.1);
  Net plain;
  std::vector<torch::Tensor> biases, rest;
  for (const auto& item : plain->named_parameters())
    (item.key().ends_with("bias") ? biases : rest).push_back(item.value());
  torch::optim::SGD by_hand(rest, options);
  const auto theirs = torch::optim::SGDOptions(options).momentum(0.5).weight_decay(0);
  torch::optim::SGD of_biases(biases, torch::optim::SGDOptions(theirs).lr(0.15));
  OptimizerSpec spec = optimizer_spec(options, {});
  spec.groups = {{[](const std::string& name) { return name.ends_with("bias"); }, 3, 1,
                  optimizer_spec(theirs, {}).rule}};
  for (const Weights weights : {Weights::kAuto, Weights::kPrivate}) {
    auto model = data_parallel(Net(), group, {.weights = weights});
    auto optim = model.optimizer(spec);
    for (int step = 0; step < kSteps; ++step) {
      const Data all = batch(step, kBatch);
      const Data mine =
          part(all, begin_of(group.rank(), group.size()), begin_of(group.rank() + 1, group.size()));
      loss_of(model.forward(mine.x), mine.y).backward();
      optim.step();
      optim.zero_grad();
      if (weights != Weights::kAuto) continue;
      plain->zero_grad();
      loss_of(plain->forward(all.x), all.y).backward();
      by_hand.step();
      of_biases.step();
    }
    group.barrier();
    expect_close(weights_of(*model), weights_of(*plain), 2e-5,
                 std::string("groups with weights ") + to_string(weights));
  }
}

void compare_all(const Group& group) {
  compare_groups(group);
  compare<torch::optim::SGD>(group, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-3),
                             "SGD");
  compare<torch::optim::SGD>(group, torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true),
                             "Nesterov", 0.05);
  compare<torch::optim::AdamW>(group, torch::optim::AdamWOptions(1e-2).weight_decay(0.1), "AdamW");
  compare<torch::optim::Adam>(group, torch::optim::AdamOptions(1e-2).amsgrad(true), "Adam", 0.05);
  compare<torch::optim::RMSprop>(
      group, torch::optim::RMSpropOptions(1e-3).momentum(0.9).centered(true), "RMSprop");
  compare<torch::optim::Adagrad>(
      group, torch::optim::AdagradOptions(1e-2).lr_decay(0.01).initial_accumulator_value(0.1),
      "Adagrad");
}

TEST(DataParallel, EqualsOneProcessWithEveryOptimizerAsThreads) {
  for (int world : {1, 2, 3}) replicate(world, compare_all, 20s);
}

TEST(DataParallel, EqualsOneProcessAsProcessesInSharedMemoryAndOverTcp) {
  for (const char* transport : {"shm", "tcp"}) {
    const auto codes = comm::fork_ranks(2, transport, [](const Group& group) {
      compare_all(group);
      return 0;
    });
    EXPECT_EQ(codes, std::vector<int>(2, 0)) << transport;
  }
}

// With a torch::optim optimizer, backward() leaves the average in grad().
void average_with_torch(const Group& group) {
  auto model = data_parallel(Net(), group);
  torch::optim::SGD optim(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < kSteps; ++step) {
    const Data mine = part(batch(step, kBatch), begin_of(group.rank(), group.size()),
                           begin_of(group.rank() + 1, group.size()));
    optim.zero_grad();
    loss_of(model.forward(mine.x), mine.y).backward();
    optim.step();
  }
  expect_close(weights_of(*model),
               by_torch<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9)), 2e-5,
               "torch's SGD");
}

TEST(DataParallel, AveragesGradientsForTorchsOwnOptimizers) {
  replicate(3, average_with_torch, 20s);
  const auto codes = comm::fork_ranks(2, "tcp", [](const Group& group) {
    average_with_torch(group);
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

TEST(DataParallel, AccumulatesInsideNoSync) {
  replicate(
      2,
      [](Group group) {
        auto model = data_parallel(Net(), group);
        auto optim = model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
        Net alone;
        const Data all = batch(0, 8);
        loss_of(alone->forward(all.x), all.y).backward();
        const int64_t first = group.rank() * 4;
        {
          auto guard = model.no_sync();
          const Data a = part(all, first, first + 2);
          (loss_of(model.forward(a.x), a.y) / 2).backward();
        }
        const Data b = part(all, first + 2, first + 4);
        (loss_of(model.forward(b.x), b.y) / 2).backward();
        optim.step();
        torch::optim::SGD(alone->parameters(), torch::optim::SGDOptions(0.1)).step();
        expect_close(weights_of(*model), weights_of(*alone), 1e-6, "two accumulated halves");
      },
      20s);
}

TEST(DataParallel, ASecondBackwardBeforeStepIsAnError) {
  EXPECT_THROW(replicate(
                   2,
                   [](Group group) {
                     auto model = data_parallel(Net(), group);
                     auto optim = model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
                     const Data data = batch(0, 4);
                     loss_of(model.forward(data.x), data.y).backward();
                     loss_of(model.forward(data.x), data.y).backward();
                     optim.step();
                   },
                   20s),
               Error);
}

void leave_out(const Group& group) {
  auto model = data_parallel(Net(), group);
  torch::optim::SGD optim(model->parameters(), torch::optim::SGDOptions(0.1));
  const Data data = batch(0, 4);
  for (int step = 0; step < 3; ++step) {
    optim.zero_grad();
    // In the first step no rank uses the layer, then only rank 0.
    loss_of(model.forward(data.x, step > 0 && group.rank() == 0), data.y).backward();
    if (model->extra->weight.grad().defined() != (step > 0))
      throw std::runtime_error("the unused layer's gradient is wrong at step " +
                               std::to_string(step));
    optim.step();
  }
  torch::Tensor weight = model->extra->weight.detach().clone();
  torch::Tensor other = weight.clone();
  group.broadcast(other, 0);
  if (!torch::equal(weight, other)) throw std::runtime_error("the ranks' weights differ");
}

TEST(DataParallel, UnusedParametersCountAsZeroOrHaveNoGradient) {
  replicate(2, leave_out, 20s);
  const auto codes = comm::fork_ranks(2, "tcp", [](const Group& group) {
    leave_out(group);
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

TEST(DataParallel, ARankWithoutABatchTakesPartInTheStep) {
  replicate(
      2,
      [](Group group) {
        auto model = data_parallel(Net(), group);
        auto optim = model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
        Net alone;
        const Data data = batch(0, 5);
        if (group.rank() == 1) loss_of(model.forward(data.x), data.y).backward();
        optim.step();
        loss_of(alone->forward(data.x), data.y).backward();
        torch::optim::SGD(alone->parameters(), torch::optim::SGDOptions(0.1)).step();
        expect_close(weights_of(*model), weights_of(*alone), 1e-6, "a step of one rank of two");
      },
      20s);
}

TEST(DataParallel, BuffersEqualThoseOfRankZeroAfterEachStep) {
  for (bool torch_optimizer : {false, true}) {
    replicate(
        2,
        [&](Group group) {
          auto model = data_parallel(Net(), group);
          model->use_norm = true;
          std::optional<Optimizer> optim;
          if (!torch_optimizer)
            optim = model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
          const Data data = batch(group.rank(), 6);
          loss_of(model.forward(data.x), data.y).backward();
          if (optim) optim->step();
          torch::Tensor mean = model->norm->running_mean.clone(), zeros = mean.clone();
          group.broadcast(zeros, 0);
          if (!torch::equal(mean, zeros) || mean.abs().max().item<double>() == 0)
            throw std::runtime_error("the running mean is not rank 0's");
          group.barrier();
        },
        20s);
  }
}

TEST(DataParallel, StateIsSavedAndLoaded) {
  replicate(
      2,
      [](Group group) {
        const auto options = torch::optim::AdamWOptions(1e-2);
        const auto one_step = [&](auto& model, auto& optim, int64_t step) {
          const Data data = batch(step + group.rank(), 4);
          loss_of(model.forward(data.x), data.y).backward();
          optim.step();
          optim.zero_grad();
        };
        auto first = data_parallel(Net(), group);
        auto optim = first.optimizer<torch::optim::AdamW>(options);
        for (int step = 0; step < 3; ++step) one_step(first, optim, step);
        const auto state = optim.state();
        const auto weights = weights_of(*first);
        group.barrier();
        one_step(first, optim, 3);

        auto second = data_parallel(Net(), group);
        auto again = second.optimizer<torch::optim::AdamW>(options);
        group.barrier();
        {
          torch::NoGradGuard guard;
          auto params = second->parameters();
          for (std::size_t i = 0; i < params.size(); ++i) params[i].copy_(weights[i]);
        }
        again.load_state(state);  // ends with a barrier
        one_step(second, again, 3);
        group.barrier();
        expect_close(weights_of(*second), weights_of(*first), 0, "the step after loading");
        if (again.steps() != 4) throw std::runtime_error("the step count was not restored");
      },
      20s);
}

TEST(DataParallel, AStateThatDoesNotFitOnOneRankIsRefusedOnAllAndTheyGoOn) {
  replicate(
      2,
      [](Group group) {
        auto model = data_parallel(Net(), group);
        auto optim = model.optimizer<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2));
        auto state = optim.state();
        if (group.rank() == 1) state.clear();
        try {
          optim.load_state(state);
          ADD_FAILURE() << "no error";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), group.rank() == 1 ? Errc::kInvalidArgument : Errc::kAborted);
          EXPECT_NE(std::string(error.what()).find("optimizer state has no '"), std::string::npos);
        }
        const Data data = batch(group.rank(), 4);
        loss_of(model.forward(data.x), data.y).backward();
        optim.step();
        EXPECT_EQ(optim.steps(), 1);
        group.barrier();
      },
      20s);
}

TEST(DataParallel, NamesTheFirstParameterInWhichModulesDiffer) {
  try {
    replicate(
        2,
        [](Group group) {
          static_cast<void>(data_parallel(torch::nn::Linear(4, 2 + group.rank()), group));
        },
        20s);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("weight Float[2, 4]"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("weight Float[3, 4]"), std::string::npos)
        << error.what();
  }
}

TEST(DataParallel, NarrowCodecsStayCloseToFullGradientsOverTcp) {
  const auto codes = comm::fork_ranks(2, "tcp", [](const Group& group) {
    const auto options = torch::optim::SGDOptions(0.1);
    const auto expected = by_torch<torch::optim::SGD>(options);
    for (const char* codec : {"bf16", "f16"}) {
      DataParallelOptions how;
      how.codec = codec;
      expect_close(by_weft<torch::optim::SGD>(group, options, how), expected, 5e-3, codec);
    }
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

}  // namespace data_parallel_test
}  // namespace weft::engine

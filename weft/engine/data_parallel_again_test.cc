// A module that is given to data_parallel() twice.
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <future>

#include "weft/comm/replicate.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/engine/data_parallel.h"

namespace weft::engine {
namespace data_parallel_again_test {

using namespace std::chrono_literals;

constexpr int64_t kRows = 12;

// Initialized by a formula, since the ranks are threads that share one random generator.
torch::nn::Sequential make_net() {
  torch::nn::Sequential net(torch::nn::Linear(6, 40), torch::nn::Tanh(), torch::nn::Linear(40, 3));
  torch::NoGradGuard guard;
  for (auto& p : net->parameters())
    p.copy_((torch::arange(p.numel()) * 0.7).sin().mul(0.3).view(p.sizes()));
  return net;
}
torch::Tensor rows(int64_t begin, int64_t end) {
  return (torch::arange(begin * 6, end * 6, torch::kFloat) * 0.37).sin().view({end - begin, 6});
}

// Compares with two steps of one process.
void expect_two_steps(torch::nn::Sequential& net) {
  torch::nn::Sequential alone = make_net();
  torch::optim::SGD optimizer(alone->parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    alone->forward(rows(0, kRows)).square().mean().backward();
    optimizer.step();
  }
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    if (!torch::allclose(net->parameters()[i], alone->parameters()[i], 1e-5, 1e-5))
      throw std::runtime_error("parameter " + std::to_string(i) + " differs");
  }
}

// Two steps, each by a model of its own over the same module, with the weights of the second one
// private. The first one leaves its parameters in memory that the ranks share.
void train_twice(const Group& group, Weights first) {
  torch::nn::Sequential net = make_net();
  const int64_t mine = kRows / group.size();
  for (const Weights weights : {first, Weights::kPrivate}) {
    auto model = data_parallel(net, group, {.weights = weights});
    auto optimizer = model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
    optimizer.zero_grad();
    model.forward(rows(mine * group.rank(), mine * (group.rank() + 1))).square().mean().backward();
    optimizer.step();
    group.barrier();
  }
  expect_two_steps(net);
}

TEST(DataParallel, ASecondModelOfAModuleDoesNotUpdateTheSharedWeightsOfTheFirst) {
  for (const Weights first : {Weights::kShared, Weights::kPrivate}) {
    comm::replicate(
        2, [&](const Group& group) { train_twice(group, first); }, 20s);
    const auto codes = comm::fork_ranks(2, "shm", [&](const Group& group) {
      train_twice(group, first);
      return 0;
    });
    EXPECT_EQ(codes, std::vector<int>(2, 0));
  }
}

// Two steps. Before the second one, the program forgets zero_grad(), which is an error, and gives
// the models their group again.
void train_after_an_error(const Group& group, Weights weights) {
  torch::nn::Sequential net = make_net(), other = make_net();
  auto model = data_parallel(net, group, {.weights = weights});
  auto second = data_parallel(other, group, {.weights = weights});
  auto optimizer = model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
  const int64_t mine = kRows / group.size();
  const auto step = [&] {
    model.forward(rows(mine * group.rank(), mine * (group.rank() + 1))).square().mean().backward();
    optimizer.step();
    group.barrier();
  };
  step();
  try {
    step();
    throw std::runtime_error("no error");
  } catch (const Error&) {  // of this rank or of the other one
  }
  group.barrier();
  model.bind(group);
  second.bind(group);
  if (&model.group().backend() != &group.backend())
    throw std::runtime_error("the model has another group");
  step();
  expect_two_steps(net);
}

TEST(DataParallel, AfterARefusedStepTheGroupStaysAndTheModelTakesItAgain) {
  for (const Weights weights : {Weights::kShared, Weights::kPrivate}) {
    comm::replicate(
        2, [&](const Group& group) { train_after_an_error(group, weights); }, 20s);
    for (const char* transport : {"shm", "tcp"}) {
      if (weights == Weights::kShared && std::string(transport) == "tcp") continue;
      const auto codes = comm::fork_ranks(2, transport, [&](const Group& group) {
        train_after_an_error(group, weights);
        return 0;
      });
      EXPECT_EQ(codes, std::vector<int>(2, 0)) << transport;
    }
  }
}

// The program's group may be aborted by a rank that lives on.
TEST(DataParallel, AStepEndsWithTheGroupOfTheProgram) {
  std::promise<void> steps;
  comm::replicate(
      2,
      [&](const Group& group) {
        torch::nn::Sequential net = make_net();
        auto model = data_parallel(net, group);
        auto optimizer = model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
        if (group.rank() == 0) {
          steps.get_future().wait_for(10s);
          return group.abort(Error(Errc::kUnavailable, "the disk is full"));
        }
        steps.set_value();
        try {
          model.forward(rows(0, 4)).square().mean().backward();
          optimizer.step();
          ADD_FAILURE() << "no error";
        } catch (const Error& error) {
          EXPECT_NE(std::string(error.what()).find("the disk is full"), std::string::npos);
        }
      },
      20s);
}

}  // namespace data_parallel_again_test
}  // namespace weft::engine

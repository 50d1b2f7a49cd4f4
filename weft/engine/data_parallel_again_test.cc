// A module that is given to data_parallel() twice.
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

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

}  // namespace data_parallel_again_test
}  // namespace weft::engine

// Synchronized batch norms under parallelize(): those of the caller's Sequential, and several
// micro-batches on replicas of different size.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <sstream>

#include "weft/parallel/compose/testing/own_net.h"
#include "weft/parallel/compose/testing/parity.h"

namespace weft::parallel::internal {
namespace compose_batch_norm_test {

namespace nn = torch::nn;
using own_net::model_of;

nn::Sequential net() {
  nn::Sequential all(nn::Linear(3, 5), nn::BatchNorm1d(5), nn::Tanh(), nn::Linear(5, 2));
  all->to(at::kDouble);
  fill(*all);
  return all;
}

at::Tensor inputs() { return (torch::arange(15, at::kDouble) * 0.37).sin().view({5, 3}); }
at::Tensor targets() { return inputs().narrow(1, 0, 2).cos(); }

Plan joined(Plan plan = {}) {
  plan.sync_batch_norm = true;
  plan.optimizer = optimizer_spec(torch::optim::SGDOptions(0.1), {});
  return plan;
}

Named values_of(const nn::Sequential& own) {
  Named all;
  for (const auto& item : own->named_parameters()) all[item.key()] = item.value().detach().clone();
  for (const auto& item : own->named_buffers()) all[item.key()] = item.value().clone();
  return all;
}

// Steps of one process, on micro-batches of the given rows.
struct Alone {
  nn::Sequential own = net();
  torch::optim::SGD optimizer{own->parameters(), torch::optim::SGDOptions(0.1)};

  void step(const std::vector<std::vector<std::int64_t>>& micro_batches) {
    optimizer.zero_grad();
    for (const auto& rows : micro_batches) {
      const at::Tensor some = torch::tensor(rows);
      (torch::mse_loss(own->forward(inputs().index_select(0, some)),
                       targets().index_select(0, some)) *
       (static_cast<double>(rows.size()) / 5))
          .backward();
    }
    optimizer.step();
  }
};

// Replicas of 3 and 2 samples.
void step(ParallelModel& model) {
  const std::int64_t begin = 3 * model.replica(), rows = 3 - model.replica();
  model.zero_grad();
  model.train_step({inputs().narrow(0, begin, rows)}, {targets().narrow(0, begin, rows)});
  EXPECT_TRUE(model.step());
}

TEST(JoinedBatchNorm, HasTheGradientOfOneProcessOverUnevenMicroBatches) {
  Alone one;
  for (int i = 0; i < 3; ++i) one.step({{0, 1, 3}, {2, 4}});
  const Named wanted = values_of(one.own);
  for (const Case& c :
       {on({{"dp", 2}}), on({{"fsdp", 2}}, {.zero_stage = 2}),
        on({{"fsdp", 2}}, {.weights = Weights::kPrivate}), on({{"pp", 2}, {"dp", 2}})}) {
    replicate(c.world(), [&](const Group& group) {
      Plan plan = joined(c.plan);
      plan.micro_batches = 2;
      ParallelModel model = parallelize(model_of(net()), plan, Mesh(group, c.axes));
      for (int i = 0; i < 3; ++i) step(model);
      const Named state = named(model.state());
      if (group.rank() == 0) expect_close(state, wanted, 1e-10, c.name());
    });
  }
}

// The caller's batch norm has been replaced in the blocks, but not in the caller's Sequential.
TEST(JoinedBatchNorm, FollowsTheModeOfTheCallersBatchNorm) {
  Alone one;
  one.step({{0, 1, 2, 3, 4}});
  one.own->ptr(1)->eval();
  one.step({{0, 1, 2, 3, 4}});
  one.own->train();
  one.step({{0, 1, 2, 3, 4}});
  const Named wanted = values_of(one.own);
  replicate(2, [&](const Group& group) {
    nn::Sequential own = net();
    ParallelModel model = parallelize(model_of(own), joined(), Mesh(group, {{"dp", 2}}));
    step(model);
    own->ptr(1)->as<nn::BatchNorm1d>()->eval();
    model.evaluate({inputs()}, {targets()});  // sets and restores modes
    step(model);
    own->train();
    step(model);
    expect_close(values_of(own), wanted, 1e-10, "the caller's");
    const Named state = named(model.state());
    if (group.rank() == 0) expect_close(state, wanted, 1e-10, "state");
  });
}

TEST(JoinedBatchNorm, TakesTheStatisticsThatTheCallersModuleLoads) {
  nn::Sequential saved = net();
  saved->named_buffers()["1.running_mean"].fill_(0.25);
  saved->named_buffers()["1.running_var"].fill_(4);
  saved->named_buffers()["1.num_batches_tracked"].fill_(7);
  std::ostringstream file;
  torch::save(saved, file);
  const double wanted = [&] {
    saved->eval();
    return torch::mse_loss(saved->forward(inputs()), targets()).item<double>();
  }();
  replicate(2, [&](const Group& group) {
    nn::Sequential own = net();
    ParallelModel model = parallelize(model_of(own), joined(), Mesh(group, {{"dp", 2}}));
    step(model);
    std::istringstream in(file.str());
    torch::load(own, in);
    EXPECT_NEAR(model.evaluate({inputs()}, {targets()}), wanted, 1e-10);
    const Named state = named(model.state());
    if (group.rank() == 0) expect_close(state, values_of(saved), 1e-10, "loaded");
    step(model);
    EXPECT_EQ(own->named_buffers()["1.num_batches_tracked"].item<std::int64_t>(), 8);
  });
}

}  // namespace compose_batch_norm_test
}  // namespace weft::parallel::internal

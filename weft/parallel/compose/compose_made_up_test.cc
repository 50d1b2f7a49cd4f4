// Replicas with fewer samples than micro-batches: the rows that are made up for them do not count,
// whatever the model and the loss make of them.
#include <torch/nn/functional.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>

#include <cmath>

#include "weft/parallel/compose/modules.h"
#include "weft/parallel/compose/testing/parity.h"

namespace weft::parallel::internal {
namespace compose_made_up_test {

namespace nn = torch::nn;

// Positions of value 0 are padding: a row of zeros has the mean of nothing, NaN.
struct MeanOfPositionsImpl : nn::Module {
  MeanOfPositionsImpl() { scale = register_parameter("scale", torch::ones({4}, at::kDouble)); }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor mask = x.ne(0).to(at::kDouble);
    return (x * scale).sum(1, true) / mask.sum(1, true) * scale;
  }
  at::Tensor scale;
};
TORCH_MODULE(MeanOfPositions);

nn::Sequential net() {
  nn::Sequential all(nn::Linear(4, 4), MeanOfPositions(), nn::Linear(4, 3));
  all->to(at::kDouble);
  fill(*all);
  const torch::NoGradGuard no_grad;
  all->parameters()[1].zero_();  // so that rows of zeros stay zeros
  return all;
}

at::Tensor inputs(std::int64_t rows) {
  return (torch::arange(rows * 4, at::kDouble) * 0.37 + 0.2).sin().view({rows, 4});
}
at::Tensor targets(std::int64_t rows) { return torch::arange(rows, at::kLong) % 2 + 1; }

// Targets of value 0 are ignored: made-up rows have no other.
at::Tensor loss_of(const at::Tensor& y, const at::Tensor& t) {
  const at::Tensor mask = t.ne(0).to(y.scalar_type()),
                   losses = nn::functional::cross_entropy(
                       y, t, nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
  return (losses * mask).sum() / mask.sum();
}

Plan plan_of(const Case& c) {
  Plan plan = c.plan;
  plan.optimizer = optimizer_spec(torch::optim::SGDOptions(0.1), {});
  return plan;
}

// One step of one process.
std::pair<double, Named> alone(std::int64_t rows) {
  nn::Sequential own = net();
  torch::optim::SGD optimizer(own->parameters(), torch::optim::SGDOptions(0.1));
  const at::Tensor loss = loss_of(own->forward(inputs(rows)), targets(rows));
  loss.backward();
  optimizer.step();
  Named weights;
  for (const auto& item : own->named_parameters()) weights[item.key()] = item.value().detach();
  return {loss.item<double>(), weights};
}

// The first replica has all samples.
void expect_one_process(const Case& c, std::int64_t rows) {
  const auto [loss, weights] = alone(rows);
  replicate(c.world(), [&, loss = loss, weights = weights](const Group& group) {
    BlockModel blocks = blocks_of(net());
    blocks.loss = loss_of;
    ParallelModel model = parallelize(blocks, plan_of(c), Mesh(group, c.axes));
    const std::int64_t mine = model.replica() == 0 ? rows : 0;
    EXPECT_NEAR(model.evaluate({inputs(mine)}, {targets(mine)}), loss, 1e-12) << c.name();
    EXPECT_NEAR(model.train_step({inputs(mine)}, {targets(mine)}), loss, 1e-12) << c.name();
    EXPECT_TRUE(model.step()) << c.name();
    const Named state = named(model.state());
    if (group.rank() == 0) expect_close(state, weights, 1e-12, c.name());
  });
}

TEST(MadeUpRows, DoNotCountIfTheModelAndTheLossMakeThemNaN) {
  const Algorithm k1F1B = Algorithm::kOneForwardOneBackward;
  for (const Case& c :
       {on({}, by(k1F1B, 4)), on({{"dp", 2}}, by(k1F1B, 4)), on({{"dp", 2}}),
        on({{"dp", 2}}, {.micro_batches = 4, .skip_not_finite = false}),
        on({{"fsdp", 2}}, by(k1F1B, 1, 3, Weights::kPrivate)),
        on({{"fsdp", 2}}, by(k1F1B, 4, 3, Weights::kPrivate)), on({{"fsdp", 2}}, by(k1F1B, 4, 2)),
        on({{"pp", 2}}, by(k1F1B, 4)), on({{"pp", 2}, {"dp", 2}}, by(k1F1B, 4)),
        on({{"pp", 2}, {"dp", 2}}, by(Algorithm::kZeroBubbleH1, 4))})
    expect_one_process(c, 3);
}

TEST(MadeUpRows, DoNotCountIfBlocksRunAgainInBackward) {
  expect_one_process(on({{"dp", 2}}, {.micro_batches = 4, .recompute = Recompute::kFull}), 3);
}

TEST(MadeUpRows, AreACopyOfASampleIfThereIsOne) {
  replicate(1, [](const Group& group) {
    nn::Sequential own(nn::Linear(4, 4), nn::Functional([](const at::Tensor& y) {
                         EXPECT_FALSE(y.eq(0).any().item<bool>());
                         return y;
                       }));
    BlockModel blocks = blocks_of(own);
    blocks.loss = [](const at::Tensor& y, const at::Tensor& t) {
      EXPECT_NE(y.data_ptr(), t.data_ptr());
      return torch::mse_loss(y, t);
    };
    own->parameters()[1].data().zero_();
    ParallelModel model = parallelize(blocks, {.micro_batches = 3}, Mesh(group, {}));
    const at::Tensor x = torch::ones({1, 4}), before = x.clone();
    model.train_step({x}, {x});
    EXPECT_TRUE(at::equal(x, before));
  });
}

// The modes of all blocks are known before one is changed.
TEST(MadeUpRows, LeaveTheModesOfModulesThatBlocksShare) {
  nn::BatchNorm1d norm(4), frozen(4);
  nn::Dropout drop(0.1);
  frozen->eval();
  const nn::Sequential own(nn::Linear(4, 4), norm, drop, norm, drop, frozen);
  replicate(1, [&](const Group& group) {
    BlockModel blocks = blocks_of(own);
    blocks.loss = [](const at::Tensor& y, const at::Tensor& t) { return torch::mse_loss(y, t); };
    ParallelModel model = parallelize(blocks, {.micro_batches = 4}, Mesh(group, {}));
    const at::Tensor x = (torch::arange(48) * 0.37).sin().view({3, 4, 4});
    model.train_step({x}, {x});
  });
  EXPECT_TRUE(norm->is_training());
  EXPECT_TRUE(drop->is_training());
  EXPECT_FALSE(frozen->is_training());
  EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 6);  // three micro-batches
}

// A batch norm of one row would be an error in training mode.
TEST(MadeUpRows, StayInEvaluationModeInTheSecondRunOfABlock) {
  replicate(2, [](const Group& group) {
    nn::Sequential own(nn::Linear(4, 4), nn::BatchNorm1d(4), nn::Linear(4, 4));
    BlockModel blocks = blocks_of(own);
    blocks.loss = [](const at::Tensor& y, const at::Tensor& t) { return torch::mse_loss(y, t); };
    ParallelModel model =
        parallelize(blocks, {.recompute = Recompute::kFull}, Mesh(group, {{"dp", 2}}));
    const at::Tensor x = torch::ones({group.rank() == 0 ? 3 : 0, 4});
    EXPECT_TRUE(std::isfinite(model.train_step({x}, {x})));
    EXPECT_TRUE(model.step());
  });
}

}  // namespace compose_made_up_test
}  // namespace weft::parallel::internal

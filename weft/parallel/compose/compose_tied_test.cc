// Weights that several blocks have, over pipeline stages: as in one process, or refused.
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "weft/base/testing/refusal.h"
#include "weft/parallel/compose/modules.h"
#include "weft/parallel/compose/testing/parity.h"

namespace weft::parallel::internal {
namespace compose_tied_test {

namespace nn = torch::nn;

at::Tensor values(at::IntArrayRef sizes, double phase) {
  return (torch::arange(c10::multiply_integers(sizes), at::kDouble) * 0.7 + phase)
             .sin()
             .view(sizes) *
         0.5;
}

struct ProductImpl : nn::Module {
  explicit ProductImpl(const at::Tensor& given)
      : weight(register_parameter("weight", given, given.requires_grad())) {}
  at::Tensor forward(const at::Tensor& x) { return in_use ? torch::linear(x, weight).tanh() : x; }
  at::Tensor weight;
  bool in_use = true;
};
TORCH_MODULE(Product);

struct Net;
struct Training {
  optim::UpdateRule rule = {};
  std::function<void(Net& net, int step)> habit = nullptr;  // before each step
  bool ends_with_softmax = false;
  std::size_t tied = 0;  // the part with the weight of the last one
  bool declares = true;
};

struct Net {
  explicit Net(const Training& how) {
    const std::vector<std::string> names{"in", "first", "second", "out"};
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::size_t own = i == 3 ? how.tied : i;
      if (own == i)
        weights.push_back(values({4, 4}, static_cast<double>(i)).set_requires_grad(true));
      parts.emplace_back(weights[own]);
      blocks.push_back(block(names[i], parts.back()));
      if (how.declares && (i == 3 || i == how.tied))
        blocks.back().tied[names[how.tied] + ".weight"] = weights[how.tied];
    }
    if (how.ends_with_softmax) blocks.push_back(block("softmax", nn::LogSoftmax(1)));
  }
  Named named() const {
    Named all;
    for (std::size_t i = 0; i < parts.size(); ++i)
      all[std::to_string(i)] = parts[i]->weight.detach().clone();
    return all;
  }
  std::vector<at::Tensor> weights;
  std::vector<Product> parts;
  std::vector<Block> blocks;
};

BlockModel model_of(std::vector<Block> blocks) {
  BlockModel model = blocks_of(std::move(blocks));
  model.loss = [](const at::Tensor& y, const at::Tensor& t) { return torch::mse_loss(y, t); };
  return model;
}

at::Tensor batch_of(int step) { return values({6, 4}, step); }

// The weights after some steps, on every rank.
Named trained(const Group& world, const Case& c, const Training& how) {
  Net net(how);
  Plan plan = c.plan;
  plan.optimizer = optimizer_spec(how.rule, {});
  ParallelModel model = parallelize(model_of(net.blocks), plan, Mesh(world, c.axes));
  for (int step = 0; step < kSteps; ++step) {
    model.zero_grad();
    if (how.habit) how.habit(net, step);
    model.train_step({batch_of(step)}, {batch_of(step + 1)});
    model.step();
  }
  model.gather();
  return net.named();
}

Named by_torch(const torch::optim::SGDOptions& options, const Training& how) {
  Net net(how);
  torch::optim::SGD optimizer(net.weights, options);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    how.habit(net, step);
    at::Tensor x = batch_of(step);
    for (Product& part : net.parts) x = part(x);
    torch::mse_loss(x, batch_of(step + 1)).backward();
    optimizer.step();
  }
  return net.named();
}

const Algorithm kInTurn = Algorithm::kOneForwardOneBackward;

// Momentum and decay would move it.
TEST(ComposeTied, AWeightWithoutGradientStays) {
  const auto sgd = torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1);
  const auto freeze = [](Net& net, int step) { net.weights[0].requires_grad_(step < 2); };
  const auto leave_out = [](Net& net, int step) {
    net.parts[0]->in_use = net.parts[3]->in_use = step != 2;
  };
  for (const auto& habit : std::vector<std::function<void(Net&, int)>>{freeze, leave_out}) {
    const Training how{.rule = optimizer_spec(sgd, {}).rule, .habit = habit};
    const Named expected = by_torch(sgd, how);
    for (const Case& c :
         {on({{"dp", 1}}), on({{"pp", 2}}, by(kInTurn, 2)),
          on({{"pp", 2}}, by(Algorithm::kInterleaved, 2)),
          on({{"pp", 2}, {"fsdp", 2}}, by(kInTurn, 2, 3, Weights::kPrivate)),
          on({{"pp", 2}, {"dp", 2}}, {.micro_shards = 4}), on({{"dp", 2}}, {.micro_shards = 4})}) {
      replicate(c.world(), [&](const Group& world) {
        expect_close(trained(world, c, how), expected, 1e-10, c.name());
      });
    }
  }
}

// The embedding's block is the first one. The head's block is the last one or not; then AdamW or
// Muon must update both copies.
TEST(ComposeTied, MuonUpdatesAllCopiesAlike) {
  for (const bool ends_with_softmax : {false, true}) {
    for (const std::size_t tied : {0, 1}) {
      const Training how{.rule = optim::Muon{.weight_decay = 0.1},
                         .ends_with_softmax = ends_with_softmax,
                         .tied = tied};
      Named expected;
      replicate(1, [&](const Group& one) { expected = trained(one, on({{"dp", 1}}), how); });
      for (const Case& c : {on({{"pp", 2}}, by(kInTurn, 2)), on({{"pp", 4}}, by(kInTurn, 2))}) {
        replicate(c.world(), [&](const Group& world) {
          expect_close(trained(world, c, how), expected, 1e-10,
                       c.name() + ", " + std::to_string(tied));
        });
      }
    }
  }
}

// Expects `what` in the error of parallelize() on each rank; "accepted" stands for none.
void expect_at_making(const std::function<std::vector<Block>()>& make,
                      const std::vector<Axis>& axes, const Plan& plan, const std::string& what) {
  replicate(2, [&](const Group& world) {
    EXPECT_THAT(refusal([&] { parallelize(model_of(make()), plan, Mesh(world, axes)); }),
                testing::HasSubstr(what));
  });
}

TEST(ComposeTied, AWeightOfTwoStagesThatIsNotDeclaredIsRefused) {
  const auto untied = [] { return Net({.declares = false}).blocks; };
  expect_at_making(untied, {{"pp", 2}}, {},
                   "'weight' of block 'in' and 'weight' of block 'out' are one parameter, but the "
                   "blocks are in different pipeline stages; name it in Block::tied of both, set "
                   "the plan's cuts so that one stage has both, or use dp in place of pp");
  expect_at_making(untied, {{"dp", 2}}, {}, "accepted");
  const auto tied = [] { return Net({}).blocks; };
  expect_at_making(tied, {{"pp", 2}}, {}, "accepted");
  expect_at_making(tied, {{"pp", 2}}, by(Algorithm::kZeroBubbleV, 2),
                   "use a schedule with these stages on different ranks");
}

TEST(ComposeTied, AModuleOfTwoStagesIsRefused) {
  replicate(2, [](const Group& world) {
    nn::Linear shared(8, 8);
    nn::BatchNorm1d norm(nn::BatchNormOptions(8).affine(false));
    const auto make = [&](const nn::Sequential& net, const Plan& plan) {
      BlockModel model = blocks_of(net);
      model.loss = [](const at::Tensor& y, const at::Tensor& t) { return torch::mse_loss(y, t); };
      return refusal([&] { parallelize(model, plan, Mesh(world, {{"pp", 2}})); });
    };
    EXPECT_THAT(make(nn::Sequential(shared, nn::ReLU(), shared), {}),
                testing::HasSubstr("'0.weight' of block '0' and '2.weight' of block '2' are one "
                                   "parameter"));
    EXPECT_THAT(make(nn::Sequential(norm, nn::Linear(8, 8), norm), {}),
                testing::HasSubstr("are one buffer, but the blocks are in different pipeline "
                                   "stages; give each block its own"));
    const nn::Sequential net(nn::Linear(8, 8), shared, nn::ReLU(), shared);
    EXPECT_EQ(make(net, {.cuts = {1}}), "accepted");
  });
}

struct OddImpl : nn::Module {
  OddImpl(const std::string& name, bool is_buffer) {
    is_buffer ? register_buffer(name, torch::ones({4}))
              : register_parameter(name, torch::ones({4}));
    fc = register_module("fc", nn::Linear(4, 4));
  }
  at::Tensor forward(const at::Tensor& x) { return fc(x); }
  nn::Linear fc{nullptr};
};
TORCH_MODULE(Odd);

TEST(ComposeTied, NamesThatCheckpointsUseAreRefused) {
  for (const char* const name : {"steps", "loss_scale"}) {
    for (const bool is_buffer : {false, true}) {
      for (const bool has_prefix : {false, true}) {
        const auto make = [&] {
          Block one = block("odd", Odd(name, is_buffer));
          if (!has_prefix) one.prefix = "";
          return std::vector<Block>{one};
        };
        expect_at_making(make, {{"dp", 2}}, {},
                         has_prefix ? "accepted"
                                    : "checkpoints have a value of weft's own by the name '" +
                                          std::string(name) + "'; rename the parameter or buffer");
      }
    }
  }
}

}  // namespace compose_tied_test
}  // namespace weft::parallel::internal

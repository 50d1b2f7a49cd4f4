// Plan::micro_shards: the same bits of losses, norms, weights and optimizer state for any replicas,
// shards and stages.
#include <torch/optim/adamw.h>

#include <cmath>
#include <limits>

#include "weft/parallel/compose/internal/any_order.h"
#include "weft/parallel/compose/testing/by_torch.h"

namespace weft::parallel {
namespace micro_shards_test {

using namespace internal;
using schedule::pipeline::Algorithm;
using testing::HasSubstr;

struct Case {
  std::vector<Axis> axes = {};
  Plan plan = {};

  std::string name() const {
    std::string text = "ZeRO-" + std::to_string(plan.zero_stage) + ", " + to_string(plan.weights);
    for (const Axis& axis : axes) text += ", " + axis.name + "=" + std::to_string(axis.size);
    return text;
  }
};

struct Outcome {
  std::vector<double> losses, norms;
  Named state;
};

Plan planned(Plan plan, const Tiny& how) {
  plan.seed = kSeed;
  plan.micro_shards = 8;  // of 11 samples
  plan.optimizer = optimizer_spec(torch::optim::AdamWOptions(1e-2).weight_decay(0.01), {});
  plan.optimizer.max_grad_norm = how.clip;
  return plan;
}

// Steps [begin, end), from a state or from the beginning.
Outcome outcome(const Case& run, const Tiny& how, int begin = 0, int end = kSteps,
                const Named& from = {}) {
  Outcome result;
  int world = 1;
  for (const Axis& axis : run.axes) world *= axis.size;
  replicate(world, [&](const Group& group) {
    torch::set_num_threads(1);
    ParallelModel model =
        parallelize(tiny_model(how), planned(run.plan, how), Mesh(group, run.axes));
    if (!from.empty()) model.load_state({from.begin(), from.end()});
    Outcome mine;
    for (int step = begin; step < end; ++step) {
      model.zero_grad();
      for (int batch = step * run.plan.accumulate; batch < (step + 1) * run.plan.accumulate;
           ++batch) {
        const auto share = [&](int shift) {
          return share_of(tokens_of(batch, shift), model.replica(), model.replicas());
        };
        mine.losses.push_back(model.train_step({share(0)}, {share(1)}));
      }
      mine.norms.push_back(model.grad_norm());
      model.step();
    }
    mine.state = named(model.state());
    if (group.rank() == 0) result = std::move(mine);
  });
  return result;
}

void expect_equal(const Outcome& got, const Outcome& want, const std::string& what) {
  EXPECT_EQ(got.losses, want.losses) << what;
  EXPECT_EQ(got.norms, want.norms) << what;
  expect_same_bits(got.state, want.state, what);
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {{{"dp", 2}}},
      {{{"dp", 4}}},
      {{{"dp", 8}}},
      {{{"fsdp", 2}}, {.zero_stage = 1}},
      {{{"fsdp", 4}}, {.zero_stage = 2, .weights = Weights::kPrivate}},
      {{{"fsdp", 4}}, {.weights = Weights::kShared}},
      {{{"fsdp", 2}}, {.weights = Weights::kPrivate, .recompute = Recompute::kFull}},
      {{{"dp", 2}, {"fsdp", 2}}},
      {{{"fsdp", 2}, {"dp", 2}}},
      {{{"pp", 2}}},
      {{{"pp", 3}}, {.schedule = Algorithm::kZeroBubbleH1, .recompute = Recompute::kFull}},
      {{{"pp", 2}}, {.schedule = Algorithm::kInterleaved}},
      {{{"pp", 2}, {"dp", 2}}, {.schedule = Algorithm::kGPipe}},
      {{{"pp", 2}, {"fsdp", 2}},
       {.schedule = Algorithm::kZeroBubbleV, .weights = Weights::kPrivate}},
  };
  return all;
}

TEST(MicroShards, GiveTheBitsOfOneProcess) {
  const Tiny how{.type = at::kFloat, .dropout = 0.2, .clip = 0.5};
  const Outcome one = outcome({}, how);
  EXPECT_LT(one.losses.back(), one.losses.front());
  for (const Case& run : cases()) expect_equal(outcome(run, how), one, run.name());
}

TEST(MicroShards, GiveTheBitsOfOneProcessInBfloat16WithAccumulationAndUntied) {
  const Tiny how{.type = at::kFloat, .clip = 0.5, .tied = false};
  const Plan plan{.accumulate = 2, .precision = Precision::kBf16};
  const Outcome one = outcome({{}, plan}, how);
  for (const std::vector<Axis>& axes :
       {std::vector<Axis>{{"dp", 2}, {"fsdp", 2}}, {{"pp", 3}, {"dp", 2}}}) {
    const Case run{axes, plan};
    expect_equal(outcome(run, how), one, run.name());
  }
}

// One process computes the same as torch, up to the order of sums.
TEST(MicroShards, EqualTorchWithinRounding) {
  const Tiny how{.clip = 0.5};
  const Trained torchs =
      by_torch<torch::optim::AdamW>(how, torch::optim::AdamWOptions(1e-2).weight_decay(0.01));
  const Outcome one = outcome({{{"pp", 2}, {"fsdp", 2}}}, how);
  for (std::size_t step = 0; step < torchs.losses.size(); ++step) {
    EXPECT_NEAR(one.losses[step], torchs.losses[step], 1e-10);
    EXPECT_NEAR(one.norms[step], torchs.norms[step], 1e-10);
  }
  expect_close(one.state, torchs.weights, 1e-10, "two stages of two shards");
}

at::Tensor sines(at::IntArrayRef sizes, double phase) {
  return (torch::arange(c10::multiply_integers(sizes), at::kDouble) * 0.7 + phase)
      .sin()
      .view(sizes)
      .to(at::kFloat);
}

// Two blocks. The first returns a strided tensor, [samples, 48, 32] as [samples, 32, 48]. The
// second sums it, in another order if the tensor became contiguous on the way.
struct Gaps : torch::nn::Module {
  Gaps(at::IntArrayRef sizes, double phase)
      : weight(register_parameter("weight", sines(sizes, phase))) {}
  at::Tensor weight;
};

BlockModel with_gaps() {
  BlockModel model;
  model.blocks.push_back(
      {"first", [](const Contexts&) {
         const auto module = std::make_shared<Gaps>(at::IntArrayRef{48, 64}, 0.2);
         return Block{.module = module, .forward = [module](const Tensors& x) {
                        return Tensors{torch::linear(x[0], module->weight).transpose(1, 2)};
                      }};
       }});
  model.blocks.push_back({"second", [](const Contexts&) {
                            const auto module = std::make_shared<Gaps>(at::IntArrayRef{32}, 0.7);
                            return Block{.module = module, .forward = [module](const Tensors& x) {
                                           return Tensors{(x[0] * module->weight).tanh().sum(-1)};
                                         }};
                          }});
  model.loss = [](const Tensors& y, const Tensors& t, const Contexts&) {
    return (y[0] - t[0]).square().mean();
  };
  return model;
}

TEST(MicroShards, GiveTheBitsOfOneProcessIfBlocksReturnStridedTensors) {
  const auto weights = [](int world) {
    Named state;
    replicate(world, [&](const Group& group) {
      torch::set_num_threads(1);
      Plan plan = planned({}, {});
      if (world > 1) plan.cuts = {1};
      ParallelModel model = parallelize(with_gaps(), plan, Mesh(group, {{"pp", world}}));
      for (int step = 0; step < kSteps; ++step) {
        model.zero_grad();
        model.train_step({sines({16, 32, 64}, step)}, {sines({16, 48}, step + 1)});
        model.step();
      }
      const Named mine = named(model.state());
      if (group.rank() == 0) state = mine;
    });
    return state;
  };
  expect_same_bits(weights(2), weights(1), "two stages");
}

TEST(MicroShards, ARunContinuesUnderAnotherPlan) {
  const Tiny how{.type = at::kFloat, .dropout = 0.2};
  const Outcome whole = outcome({}, how);
  const Case first{{{"pp", 2}, {"dp", 2}}}, then{{{"fsdp", 4}}, {.weights = Weights::kPrivate}};
  const Outcome part = outcome(first, how, 0, 2);
  expect_same_bits(outcome(then, how, 2, kSteps, part.state).state, whole.state, "resumed");
}

TEST(MicroShards, PlansThatCannotHaveTheSameBitsAreRejected) {
  const auto refused = [](const std::vector<Axis>& axes, Plan plan,
                          const ModelShape& model = {.blocks = 5}) -> std::string {
    int world = 1;
    for (const Axis& axis : axes) world *= axis.size;
    try {
      check_plan(plan, model, plan::MeshLayout(world, axes));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kBadConfig);
      return error.message();
    }
    return "accepted";
  };
  EXPECT_EQ(refused({{"dp", 2}, {"fsdp", 2}}, {.micro_shards = 8}), "accepted");
  EXPECT_EQ(refused({{"dp", 2}}, {.micro_batches = 4, .micro_shards = 8}), "accepted");
  EXPECT_EQ(
      refused({{"dp", 3}}, {.micro_shards = 8}),
      "plan: micro_shards = 8 cannot be divided over 3 replicas; nearest that works: dp=1,pp=3");
  EXPECT_THAT(refused({{"tp", 2}}, {.micro_shards = 8}, {.blocks = 5, .splits = {{"hidden", 8}}}),
              HasSubstr("another order; nearest that works: dp=2,tp=1"));
  EXPECT_THAT(refused({}, {.micro_shards = 6}), HasSubstr("must be a power of two"));
  EXPECT_THAT(refused({{"dp", 2}}, {.micro_batches = 2, .micro_shards = 8}),
              HasSubstr("remove micro_batches = 2"));
  EXPECT_THAT(refused({}, {.micro_shards = 8}, {.blocks = 5, .experts = 4}),
              HasSubstr("experts are balanced"));
  EXPECT_THAT(refused({{"dp", 2}}, {.micro_shards = 8, .codec = "int8"}), HasSubstr("a codec"));
}

TEST(MicroShards, ABatchThatIsDividedDifferentlyIsRejected) {
  replicate(2, [](const Group& group) {
    ParallelModel model = parallelize(tiny_model({}), planned({}, {}), Mesh(group, {{"dp", 2}}));
    const at::Tensor mine = tokens_of(0, 0).slice(0, 0, group.rank() == 0 ? 6 : 5);
    try {
      model.train_step({mine}, {mine});
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), testing::AnyOf(HasSubstr("of all n, here"), HasSubstr("aborted"),
                                                  HasSubstr("of all n")))
          << error.what();
    }
  });
}

// The gradients of both parameters are views of one tensor.
TEST(GradientTree, AddsEachGradientOnceIfGradientsShareMemory) {
  const at::Tensor a = torch::zeros({2, 2}).requires_grad_(),
                   b = torch::zeros({4, 1}).requires_grad_();
  GradientTree tree({a, b}, 2);
  const at::Tensor factors = torch::arange(8, at::kFloat).view({2, 4});
  for (int leaf = 0; leaf < 2; ++leaf) {
    ((a.view(-1) + b.view(-1)) * factors[leaf]).sum().backward();
    EXPECT_EQ(tree.take(leaf), leaf == 1);
  }
  EXPECT_TRUE(at::equal(a.grad().view(-1), factors.sum(0)));
  EXPECT_TRUE(at::equal(b.grad().view(-1), factors.sum(0)));
}

// Parts of every size in every order, against float64 and against integers that float64 cannot
// represent exactly.
TEST(SquaresInAnyOrder, HaveTheSameBitsForAnyDivision) {
  torch::manual_seed(1);
  const at::Tensor all = torch::randn({100'003}) * torch::pow(10.0, torch::randn({100'003}) * 3);
  const auto sum = [](int world, const at::Tensor& numbers) {
    double result = 0;
    replicate(world, [&](const Group& group) {
      const auto mine =
          at::tensor_split(numbers, world, 0)[static_cast<std::size_t>(world - 1 - group.rank())];
      const double got = squares_in_any_order(group, {mine.slice(0, 0, 17), mine.slice(0, 17)});
      if (group.rank() == 0) result = got;
    });
    return result;
  };
  const double one = sum(1, all);
  EXPECT_NEAR(one / all.to(at::kDouble).square().sum().item<double>(), 1, 1e-14);
  for (const int world : {2, 3, 4}) EXPECT_EQ(sum(world, all), one) << world;
  EXPECT_EQ(sum(2, torch::zeros({8})), 0);
  EXPECT_EQ(sum(2, torch::full({4}, 3.0)), 36);
  EXPECT_EQ(sum(2, torch::full({4}, std::ldexp(3.0, -500), at::kDouble)), std::ldexp(36.0, -1000));
  for (const double bad :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    at::Tensor some = torch::ones({40});
    some[3] = bad;
    EXPECT_FALSE(std::isfinite(sum(2, some)));
  }
}

}  // namespace micro_shards_test
}  // namespace weft::parallel

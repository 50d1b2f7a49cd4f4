// LARS, LAMB, Adafactor and Muon over ranks, at every stage, equal their papers' equations in one
// process on the whole batch: to 1e-10 in float64 over 5 steps, and to 1e-5 in float32.
#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"
#include "weft/checkpoint/reader.h"
#include "weft/checkpoint/sharded.h"
#include "weft/engine/testing/by_equations.h"
#include "weft/engine/testing/small_model.h"

#include <gmock/gmock.h>
#include <torch/optim/adamw.h>

namespace weft::engine {
namespace whole_updates_test {

using namespace std::chrono_literals;
using internal::blocks_of;
using internal::by_torch;
using internal::ByEquations;
using internal::Case;
using internal::compare;
using internal::kCases;
using internal::make_parts;
using internal::ModelOptions;
using internal::options_of;
using internal::require;

const std::vector<UpdateRule> kRules{
    optim::Lars{.lr = 0.1, .trust = 0.1, .weight_decay = 0.1},
    optim::Lars{.lr = 0.1, .trust = 0.1, .nesterov = true},
    optim::Lamb{.lr = 0.01, .weight_decay = 0.1},
    optim::Adafactor{.lr = 0.05, .weight_decay = 0.1},
    optim::Adafactor{.lr = 0.05, .beta1 = 0.9},
    optim::Muon{.weight_decay = 0.1},
};

void compare_all(const Group& group, const ModelOptions& how, const UpdateRule& rule,
                 const std::vector<Case>& cases = kCases) {
  const auto expected = by_torch<ByEquations>(how, rule);
  for (const Case& c : cases) {
    if (c.weights == Weights::kShared && group.host() == nullptr) continue;
    ShardedOptions options = options_of(c.stage, c.weights);
    options.data_parallel.bucket_bytes = 700;
    Sharded model(blocks_of(make_parts(how)), group, optimizer_spec(rule, {}), options);
    compare(model, group, expected, how);
  }
}

TEST(WholeUpdates, EqualOneProcessAtEveryStage) {
  for (const int world : {1, 2}) {
    replicate(
        world,
        [](Group group) {
          for (const UpdateRule& rule : kRules) compare_all(group, {.tie = true}, rule);
        },
        30s);
  }
}

// Few cases, since threads outnumber the processors.
TEST(WholeUpdates, EqualOneProcessOnFourRanks) {
  replicate(
      4,
      [](Group group) {
        for (const UpdateRule& rule : kRules)
          compare_all(group, {.bodies = 1}, rule, {{0, Weights::kShared}, {3, Weights::kPrivate}});
      },
      60s);
}

TEST(WholeUpdates, EqualOneProcessInSinglePrecision) {
  replicate(
      3,
      [](Group group) {
        for (const UpdateRule& rule : kRules) compare_all(group, {.type = at::kFloat}, rule);
      },
      30s);
}

TEST(WholeUpdates, EqualOneProcessOverTcp) {
  const auto codes = comm::fork_ranks(2, "tcp", [&](const Group& group) {
    for (const UpdateRule& rule : kRules) compare_all(group, {}, rule);
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

TEST(WholeUpdates, ClipByTheNormOfAllGradientsFirst) {
  replicate(
      2,
      [](Group group) {
        const UpdateRule rule = optim::Lamb{.lr = 0.01};
        auto expected = by_torch<ByEquations>({}, rule, {{}}, 0.05);
        for (const Case& c : kCases) {
          Sharded model(blocks_of(make_parts({})), group,
                        optimizer_spec(rule, {.max_grad_norm = 0.05}),
                        options_of(c.stage, c.weights));
          for (int step = 0; step < internal::kSteps; ++step) {
            model.zero_grad();
            internal::train(model, group, step, {});
          }
          const auto state = model.state();
          if (!state.empty())
            internal::expect_close(internal::weights_in(state, expected.weights), expected.weights,
                                   1e-10, model.describe());
        }
      },
      30s);
}

// Saves after two steps, and goes on at another stage with another number of ranks.
TEST(WholeUpdates, GoOnFromACheckpointOfAnotherNumberOfRanks) {
  for (const UpdateRule& rule : kRules) {
    const TempDir dir;
    const auto expected = by_torch<ByEquations>({}, rule);
    Sharded::NamedTensors last;
    const auto train_steps = [&](int ranks, const Case& c, int from, int to) {
      replicate(
          ranks,
          [&](Group group) {
            Sharded model(blocks_of(make_parts({})), group, optimizer_spec(rule, {}),
                          options_of(c.stage, c.weights));
            if (from > 0)
              model.load_shards(checkpoint::Reader(*checkpoint::latest(dir.path(), group).folder));
            for (int step = from; step < to; ++step) {
              model.zero_grad();
              internal::train(model, group, step, {});
            }
            checkpoint::save(
                dir.path(),
                {.step = model.steps(), .parts = {{"model", model.shards()}}, .state = {}}, group);
            auto state = model.state();
            if (group.rank() == 0) last = std::move(state);
          },
          20s);
    };
    train_steps(2, {3, Weights::kPrivate}, 0, 2);
    train_steps(3, {1, Weights::kShared}, 2, 3);
    train_steps(1, {0, Weights::kAuto}, 3, 4);
    train_steps(2, {0, Weights::kShared}, 4, internal::kSteps);
    internal::expect_close(internal::weights_in(last, expected.weights), expected.weights, 1e-10,
                           optim::name_of(rule));
  }
}

TEST(WholeUpdates, GoOnFromTheirStateWithTheSameBits) {
  const ModelOptions how{.type = at::kFloat};
  replicate(
      2,
      [&](Group group) {
        for (const UpdateRule& rule : kRules) {
          for (const Case& c : {Case{0, Weights::kShared}, Case{2, Weights::kPrivate}}) {
            const auto make = [&] {
              return Sharded(blocks_of(make_parts(how)), group, optimizer_spec(rule, {}),
                             options_of(c.stage, c.weights));
            };
            Sharded model = make(), other = make();
            internal::train(model, group, 0, how);
            model.zero_grad();
            other.load_state(model.state());
            for (Sharded* one : {&model, &other}) {
              internal::train(*one, group, 1, how);
              one->zero_grad();
            }
            const auto mine = model.state(), its = other.state();
            require(mine.size() == its.size(), "another state");
            for (std::size_t i = 0; i < mine.size(); ++i)
              require(at::equal(mine[i].second, its[i].second),
                      optim::name_of(rule) + ": " + mine[i].first + " differs");
          }
        }
      },
      20s);
}

TEST(WholeUpdates, KeepTheStateOfAdafactorSmall) {
  replicate(2, [](Group group) {
    const ModelOptions how{.width = 20};
    Sharded model(blocks_of(make_parts(how)), group, optimizer_spec(optim::Adafactor{}, {}),
                  options_of(1, Weights::kPrivate));
    internal::train(model, group, 0, how);
    std::int64_t moments = 0, weights = 0;
    for (const auto& [name, tensor] : model.state()) {
      if (name.find(".exp_avg_sq") != std::string::npos) moments += tensor.numel();
      if (name.find(".weight") + 7 == name.size()) weights += tensor.numel();
    }
    if (group.rank() == 0) require(moments > 0 && moments < weights / 2, "the moments are large");
  });
}

TEST(WholeUpdates, KeepOneArrayForAMatrixOfMuon) {
  replicate(2, [](Group group) {
    const ModelOptions how{.width = 20};
    for (const Case& c : kCases) {
      const auto make = [&](const UpdateRule& rule) {
        return Sharded(blocks_of(make_parts(how)), group, optimizer_spec(rule, {}),
                       options_of(c.stage, c.weights));
      };
      Sharded model = make(optim::Muon{}), lamb = make(optim::Lamb{});
      require(4 * model.memory().state < 3 * lamb.memory().state, "the state is large");
      internal::train(model, group, 0, how);
      int vectors = 0;
      for (const auto& [name, tensor] : model.state()) {
        if (!name.ends_with(".exp_avg_sq")) continue;
        require(tensor.dim() < 2, name + " is kept");
        ++vectors;
      }
      require(vectors > 0 || group.rank() != 0, "the state of vectors is missing");
    }
  });
}

// Three matrices [8, 6], in one parameter or in three.
struct StackImpl : torch::nn::Module {
  explicit StackImpl(bool apart) {
    const at::Tensor whole = (torch::arange(144, at::kDouble) * 0.7).sin().view({3, 8, 6});
    if (!apart) weights.push_back(register_parameter("weight", whole));
    for (int i = 0; apart && i < 3; ++i)
      weights.push_back(register_parameter(internal::part_name(i), whole[i].clone()));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor all = weights.size() == 1 ? weights[0] : torch::stack(weights);
    return torch::matmul(all, x.t()).tanh().permute({2, 0, 1}).flatten(1);
  }
  std::vector<at::Tensor> weights;
};

// Returns the trained matrices on rank 0.
std::vector<at::Tensor> trained_stack(const Group& group, int stage, bool apart) {
  Sharded model({block("stack", std::make_shared<StackImpl>(apart))}, group,
                optimizer_spec(optim::Muon{.weight_decay = 0.1}, {}),
                options_of(stage, Weights::kPrivate));
  for (int step = 0; step < internal::kSteps; ++step) {
    model.zero_grad();
    internal::train(model, group, step, {});
  }
  const auto saved = model.state();
  internal::Named state(saved.begin(), saved.end());
  if (state.empty()) return {};
  if (!apart) return state.at("stack.weight").unbind();
  return {state.at("stack.b0"), state.at("stack.b1"), state.at("stack.b2")};
}

TEST(WholeUpdates, MakeEachMatrixOfAStackOrthogonal) {
  replicate(2, [](Group group) {
    for (const int stage : {0, 3}) {
      const auto whole = trained_stack(group, stage, false),
                 apart = trained_stack(group, stage, true);
      require(group.rank() != 0 || whole.size() == 3, "the state is missing");
      for (std::size_t i = 0; i < whole.size(); ++i)
        require(at::allclose(whole[i], apart[i], 1e-12, 1e-12), "a matrix differs");
    }
  });
}

TEST(WholeUpdates, LeaveNamedMatricesToAdamW) {
  const UpdateRule rule = optim::Muon{};
  replicate(2, [&](Group group) {
    OptimizerSpec spec = optimizer_spec(rule, {});
    spec.not_orthogonal = [](const std::string&) { return true; };
    Sharded model(blocks_of(make_parts({})), group, spec, options_of(2, Weights::kPrivate));
    compare(model, group,
            by_torch<torch::optim::AdamW>(
                {}, torch::optim::AdamWOptions(3e-4).betas({0.9, 0.95}).eps(1e-10).weight_decay(0)),
            {});
  });
}

// One of 10,000 values, which samples do not see. The first update does not know what was before.
std::string error_of_a_written_value(const UpdateRule& rule, int stage, bool written) {
  return refusal([&] {
    comm::replicate(
        2,
        [&](const Group& group) {
          auto parts = make_parts({.width = 100});
          Sharded model(blocks_of(parts), group, optimizer_spec(rule, {}),
                        options_of(stage, Weights::kShared));
          for (int step = 0; step < 3; ++step) {
            model.zero_grad();
            group.barrier();
            if (written && step == 2 && group.rank() == 1)
              parts[1]->fc->weight.data().view({-1})[4777].mul_(1.5);
            group.barrier();
            model.forward(torch::ones({2, 6}, at::kDouble)).sum().backward();
            model.step();
          }
        },
        20s);
  });
}

TEST(WholeUpdates, NoticeAValueOfSharedWeightsWrittenThroughData) {
  for (const UpdateRule& rule : kRules) {
    for (const int stage : {0, 1, 2}) {
      EXPECT_THAT(error_of_a_written_value(rule, stage, true),
                  testing::HasSubstr("'b1.fc.weight' was changed in place"))
          << optim::name_of(rule) << stage;
      EXPECT_EQ(error_of_a_written_value(rule, stage, false), "accepted")
          << optim::name_of(rule) << stage;
    }
  }
}

TEST(WholeUpdates, RefuseAnL1PenaltyAndDividedMatrices) {
  EXPECT_THAT(refusal([] { optimizer_spec(optim::Lamb{}, {.l1 = 0.1}); }),
              testing::HasSubstr("lamb has no L1 penalty"));
  for (const UpdateRule& rule : {UpdateRule(optim::Adafactor{}), UpdateRule(optim::Muon{})}) {
    replicate(1, [&](Group group) {
      ShardedOptions options = options_of(2, Weights::kPrivate);
      options.whole_tensors.splits = {{group, [](const std::string&) { return true; }}};
      EXPECT_THAT(refusal([&] {
                    Sharded(blocks_of(make_parts({})), group, optimizer_spec(rule, {}), options);
                  }),
                  testing::HasSubstr("divided over tp or ep"));
    });
  }
}

}  // namespace whole_updates_test
}  // namespace weft::engine

// A program changes the module between two steps: each change counts as in one process, or is an
// error that names the parameter.
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include "weft/base/testing/refusal.h"
#include "weft/engine/testing/small_model.h"

namespace weft::engine {
namespace module_changes_test {

using namespace std::chrono_literals;
using internal::batch_of;
using internal::blocks_of;
using internal::kCases;
using internal::loss_of;
using internal::make_parts;
using internal::Named;
using internal::options_of;
using internal::Part;
using internal::part_of;
using internal::require;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

const auto kSgd = torch::optim::SGDOptions(0.1).momentum(0.9);
using Parts = std::vector<Part>;
using Change = std::function<void(Parts& parts, int step)>;

std::vector<at::Tensor> parameters_of(const Parts& parts) {
  std::vector<at::Tensor> all;
  for (const Part& part : parts) {
    for (at::Tensor& parameter : part->parameters()) all.push_back(parameter);
  }
  return all;
}

// The weights after training on the whole batch in one process. `change` is called before each
// forward pass.
Named by_one_process(const Change& change) {
  Parts parts = make_parts({});
  torch::optim::SGD optimizer(parameters_of(parts), kSgd);
  for (int step = 0; step < internal::kSteps; ++step) {
    optimizer.zero_grad();
    change(parts, step);
    at::Tensor x = batch_of(step, at::kDouble);
    for (Part& part : parts) x = part(x);
    loss_of(x).backward();
    optimizer.step();
  }
  return internal::weights_of(parts);
}

// The same by ranks. Rank 0 returns the weights.
Named by_ranks(const Group& group, const internal::Case& how, const Change& change,
               const Change& after_backward = nullptr) {
  Parts parts = make_parts({});
  Sharded model(blocks_of(parts), group, optimizer_spec(kSgd, {}),
                options_of(how.stage, how.weights));
  for (int step = 0; step < internal::kSteps; ++step) {
    model.zero_grad();
    change(parts, step);
    loss_of(model.forward(part_of(batch_of(step, at::kDouble), group.rank(), group.size())))
        .backward();
    if (after_backward) after_backward(parts, step);
    model.step();
  }
  const auto state = model.state();
  return {state.begin(), state.end()};
}

void expect_like_one_process(const Group& group, const internal::Case& how, const Change& change) {
  const Named expected = by_one_process(change), state = by_ranks(group, how, change);
  if (group.rank() > 0) return;
  const Named weights = internal::weights_in({state.begin(), state.end()}, expected);
  internal::expect_close(weights, expected, 1e-10,
                         "stage " + std::to_string(how.stage) + ", " + to_string(how.weights));
}

std::string error_of(const std::function<void(const Group&)>& ranks) {
  return refusal([&] { comm::replicate(2, ranks, 20s); });
}

std::string error_of(const internal::Case& how, const Change& change,
                     const Change& after_backward = nullptr) {
  return error_of([&](const Group& group) { by_ranks(group, how, change, after_backward); });
}

void nothing(Parts&, int) {}

// By set_data(), and by set_() as torch::load() does.
void load(Parts& parts, int step) {
  if (step != 0 && step != 3) return;
  const at::NoGradGuard guard;
  double phase = step;
  for (at::Tensor& parameter : parameters_of(parts)) {
    const at::Tensor values =
        ((torch::arange(parameter.numel(), at::kDouble) + ++phase).remainder(7) * 0.1 - 0.3)
            .view(parameter.sizes());
    step == 0 ? parameter.set_data(values) : static_cast<void>(parameter.set_(values));
  }
}

TEST(ModuleChanges, LoadedWeightsAreTrainedByEveryStage) {
  for (const auto& how : kCases) {
    for (int ranks : {1, 2}) {
      if (ranks == 1 && how.weights == Weights::kShared) continue;
      comm::replicate(
          ranks, [&](const Group& group) { expect_like_one_process(group, how, load); }, 20s);
    }
  }
}

TEST(ModuleChanges, LoadedWeightsAreTrainedWhereGradientsAreMessages) {
  const auto codes = comm::fork_ranks(2, "tcp", [](const Group& group) {
    for (int stage : {0, 1, 3}) expect_like_one_process(group, {stage, Weights::kPrivate}, load);
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

TEST(ModuleChanges, WeightsLoadedOnOneRankAreAnError) {
  for (const auto& how : kCases) {
    const std::string error = error_of([&](const Group& group) {
      by_ranks(group, how, [&](Parts& parts, int step) {
        if (group.rank() == 0) load(parts, step);
      });
    });
    EXPECT_THAT(error, HasSubstr("'b0.norm.weight'")) << how.stage << to_string(how.weights);
  }
}

TEST(ModuleChanges, ValuesWrittenInPlaceCountOnceOrAreAnError) {
  const auto halve = [](Parts& parts, int step) {
    const at::NoGradGuard guard;
    for (at::Tensor& parameter : parameters_of(parts)) parameter.mul_(step == 2 ? 0.5 : 1);
  };
  const auto halve_data = [](Parts& parts, int step) {
    for (at::Tensor& parameter : parameters_of(parts)) parameter.data().mul_(step == 2 ? 0.5 : 1);
  };
  for (const auto& how : kCases) {
    if (how.weights == Weights::kShared) {
      EXPECT_THAT(error_of(how, halve), HasSubstr("'b0.norm.weight' was changed in place"));
      EXPECT_THAT(error_of(how, halve_data), HasSubstr("was changed in place"));
    } else if (how.stage < 3) {  // between two steps there are no weights to write at stage 3
      comm::replicate(
          2, [&](const Group& group) { expect_like_one_process(group, how, halve); }, 20s);
    }
  }
}

// One value in each of several thousand, which samples do not see. Private weights count.
TEST(ModuleChanges, OneValueWrittenThroughDataCountsOnceOrIsAnError) {
  const auto change = [](Parts& parts, int step) {
    if (step == 3) parts[1]->fc->weight.data().view({-1})[31].mul_(1.5);
  };
  for (const auto& how : kCases) {
    if (how.weights == Weights::kShared) {
      EXPECT_THAT(error_of(how, change),
                  AllOf(AnyOf(HasSubstr("'b1.fc.weight'"), HasSubstr("a parameter from '")),
                        HasSubstr("was changed in place, but its memory is shared")))
          << how.stage;
    } else if (how.stage < 3) {
      comm::replicate(
          2, [&](const Group& group) { expect_like_one_process(group, how, change); }, 20s);
    }
  }
}

// Each rank's change would count for its shard only.
TEST(ModuleChanges, PrivateWeightsOfZeroWrittenThroughDataOnOneRankAreAnError) {
  const auto halve = [](Parts& parts, int step) {
    if (step == 2) parts[1]->fc->weight.data().mul_(0.5);
  };
  for (const int stage : {1, 2}) {
    const internal::Case how{stage, Weights::kPrivate};
    comm::replicate(
        2, [&](const Group& group) { expect_like_one_process(group, how, halve); }, 20s);
    EXPECT_THAT(error_of([&](const Group& group) {
                  by_ranks(group, how, [&](Parts& parts, int step) {
                    if (group.rank() == 1) halve(parts, step);
                  });
                }),
                HasSubstr("the values of 'b1.fc.weight' differ between rank 0 and rank 1"));
  }
}

// The optimizer's masters have another type than the weights of the module.
TEST(ModuleChanges, ValuesThatTheOptimizerWouldNotSeeAreAnError) {
  const auto error_of_change = [](const std::function<void(at::Tensor&)>& change) {
    return error_of([&](const Group& group) {
      Parts parts = make_parts({.type = at::kFloat});
      ShardedOptions options = options_of(2, Weights::kPrivate);
      options.compute = at::kBFloat16;
      Sharded model(blocks_of(parts), group, optimizer_spec(kSgd, {}), options);
      {
        const at::NoGradGuard guard;
        change(parts[1]->fc->weight);
      }
      model.forward(batch_of(0, at::kFloat));
    });
  };
  const auto refused =
      HasSubstr("'b1.fc.weight' was changed in place, but the optimizer keeps another copy");
  EXPECT_THAT(error_of_change([](at::Tensor& weight) { weight.mul_(0.5); }), refused);
  EXPECT_THAT(error_of_change([](at::Tensor& weight) { weight.data().mul_(0.5); }), refused);
}

TEST(ModuleChanges, FreezingCountsAndUnfreezingIsAnError) {
  const auto freeze = [](Parts& parts, int step) {
    for (at::Tensor& parameter : parts[2]->parameters()) parameter.requires_grad_(step < 2);
  };
  for (const auto& how : kCases) {
    comm::replicate(
        2, [&](const Group& group) { expect_like_one_process(group, how, freeze); }, 20s);
    EXPECT_THAT(error_of([&](const Group& group) {
                  by_ranks(group, how, [&](Parts& parts, int step) {
                    if (group.rank() == 1) freeze(parts, step);
                  });
                }),
                HasSubstr("requires_grad of 'b2.norm.weight' differs between rank 0 and rank 1"));
    EXPECT_THAT(error_of([&](const Group& group) {
                  Parts parts = make_parts({.freeze = true});
                  Sharded model(blocks_of(parts), group, optimizer_spec(kSgd, {}),
                                options_of(how.stage, how.weights));
                  parts[2]->fc->bias.requires_grad_(true);
                  model.forward(batch_of(0, at::kDouble));
                }),
                HasSubstr("'b2.fc.bias' requires a gradient now, and did not"));
  }
}

TEST(ModuleChanges, AnotherParameterOrTypeIsAnError) {
  for (const auto& how : kCases) {
    EXPECT_THAT(error_of(how,
                         [](Parts& parts, int step) {
                           if (step == 1) parts[1]->register_parameter("more", torch::ones({2}));
                         }),
                HasSubstr("'b1.more' became a parameter of the module after"));
    EXPECT_THAT(error_of(how,
                         [](Parts& parts, int step) {
                           if (step == 1) parts[1]->replace_module("fc", torch::nn::Linear(10, 10));
                         }),
                HasSubstr("'b1.fc.weight' became a parameter of the module after"));
    // Between two steps there are no weights to convert.
    const bool gathers = how.stage == 3 && how.weights == Weights::kPrivate;
    EXPECT_THAT(error_of(how,
                         [](Parts& parts, int step) {
                           if (step == 1) parts[1]->to(at::kFloat);
                         }),
                HasSubstr(gathers ? "the values of 'b1.norm.weight' are divided over the ranks"
                                  : "'b1.norm.weight' is Float[10] now, and was Double[10]"));
  }
}

void clip(Parts& parts, int) { torch::nn::utils::clip_grad_norm_(parameters_of(parts), 0.01); }
void clip_values(Parts& parts, int) {
  torch::nn::utils::clip_grad_value_(parameters_of(parts), 0.01);
}
void log_norm(Parts& parts, int) { parts[1]->norm->weight.grad().norm().item<double>(); }

// A refused use of gradients changes nothing.
TEST(ModuleChanges, GradientsOfRanksCannotBeUsed) {
  const Named expected = by_one_process(nothing);
  for (const internal::Case& how : kCases) {
    comm::replicate(
        2,
        [&](const Group& group) {
          const auto refused = [&](Parts& parts, int step) {
            for (const Change& use : {Change(clip), Change(clip_values)})
              EXPECT_THAT(refusal([&] { use(parts, step); }),
                          HasSubstr("the gradient of 'b0.norm.weight' cannot be used here"));
            EXPECT_THAT(refusal([&] { log_norm(parts, step); }),
                        AllOf(HasSubstr("the gradient of 'b1.norm.weight' cannot be used here"),
                              HasSubstr("to clip, use max_grad_norm of the optimizer")));
          };
          const Named state = by_ranks(group, how, nothing, refused);
          if (group.rank() == 0)
            internal::expect_close(internal::weights_in({state.begin(), state.end()}, expected),
                                   expected, 1e-10, "stage " + std::to_string(how.stage));
        },
        20s);
  }
}

TEST(ModuleChanges, GradientsDroppedOrReplacedBeforeStepAreAnError) {
  const auto drop = [](Parts& parts, int) { parts[1]->zero_grad(); };
  const auto replace = [](Parts& parts, int) {
    parts[1]->fc->bias.mutable_grad() = torch::ones({10}, at::kDouble);
  };
  for (const internal::Case& how : kCases) {
    EXPECT_THAT(error_of(how, nothing, drop),
                HasSubstr("the gradient of 'b1.norm.weight' was changed or dropped"));
    EXPECT_THAT(error_of(how, nothing, replace),
                HasSubstr("the gradient of 'b1.fc.bias' was changed or dropped"));
  }
}

// After step(), the module's zero_grad() drops gradients that are on this rank.
TEST(ModuleChanges, ZeroGradOfTheModuleCountsOrIsAnError) {
  const Named expected = by_one_process(nothing);
  const auto train = [](const Group& group, const internal::Case& how) {
    Parts parts = make_parts({});
    Sharded model(blocks_of(parts), group, optimizer_spec(kSgd, {}),
                  options_of(how.stage, how.weights));
    for (int step = 0; step < internal::kSteps; ++step) {
      for (Part& part : parts) part->zero_grad();
      internal::train(model, group, step, {});
      EXPECT_THAT(refusal([&] { log_norm(parts, step); }), HasSubstr("cannot be used here"));
    }
    const auto state = model.state();
    return Named(state.begin(), state.end());
  };
  for (const internal::Case& how : kCases) {
    if (how.stage > 0) {
      EXPECT_THAT(error_of([&](const Group& group) { train(group, how); }),
                  HasSubstr("the gradient of 'b0.norm.weight' was changed or dropped"));
      continue;
    }
    comm::replicate(
        2,
        [&](const Group& group) {
          const Named state = train(group, how);
          if (group.rank() == 0)
            internal::expect_close(internal::weights_in({state.begin(), state.end()}, expected),
                                   expected, 1e-10, to_string(how.weights));
        },
        20s);
  }
}

TEST(ModuleChanges, GradientsCanBeUsedWhenTheModelIsGone) {
  for (const internal::Case& how : {internal::Case{0, Weights::kPrivate}, {2, Weights::kPrivate}}) {
    comm::replicate(
        2,
        [&](const Group& group) {
          Parts parts = make_parts({});
          {
            Sharded model(blocks_of(parts), group, optimizer_spec(kSgd, {}),
                          options_of(how.stage, how.weights));
            internal::train(model, group, 0, {});
          }
          at::Tensor x = batch_of(1, at::kDouble);
          for (Part& part : parts) x = part(x);
          loss_of(x).backward();
          clip(parts, 0);
        },
        20s);
  }
}

// With one rank, data_parallel() leaves the gradients of the whole batch in grad().
TEST(ModuleChanges, GradientsOfOneRankCanBeRead) {
  comm::replicate(
      1,
      [](Group group) {
        auto model = data_parallel(torch::nn::Linear(4, 2), group);
        auto optimizer = model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
        model.forward(torch::ones({3, 4})).sum().backward();
        require(at::equal(model->weight.grad(), torch::full({2, 4}, 3.0)), "the gradient");
        optimizer.step();
      },
      20s);
}

TEST(ModuleChanges, WeightsThatAreDividedAreRefused) {
  comm::replicate(
      2,
      [](const Group& group) {
        Parts parts = make_parts({});
        Sharded model(blocks_of(parts), group, optimizer_spec(kSgd, {}),
                      options_of(3, Weights::kPrivate));
        const auto refused = [&](const std::function<void()>& use) {
          const at::NoGradGuard guard;
          EXPECT_THAT(refusal(use),
                      AllOf(HasSubstr("the values of 'b1.fc.weight' are divided over the ranks"),
                            HasSubstr("to write them, call torch::load() or load_state()")));
        };
        for (int step = 0; step < 2; ++step) {
          at::Tensor& weight = parts[1]->fc->weight;
          refused([&] { weight.mul_(0.9); });
          refused([&] { weight.data().fill_(1); });
          refused([&] { weight.norm(); });
          refused([&] { parts[1]->fc->to(at::kFloat); });
          model.zero_grad();
          internal::train(model, group, step, {});
        }
      },
      20s);
}

// Between backward() and step() a rank alone may have loaded it.
TEST(ModuleChanges, AWeightLoadedBeforeStepCountsOrIsAnError) {
  for (const auto& how : kCases) {
    for (const int loaders : {1, 2}) {
      const std::string error = error_of([&](const Group& group) {
        by_ranks(group, how, nothing, [&](Parts& parts, int step) {
          if (group.rank() < loaders) load(parts, step);
        });
      });
      // At stage 1, gradients leave in step().
      const bool counts =
          loaders == 2 && (how.stage == 1 || (how.stage == 0 && how.weights == Weights::kPrivate));
      EXPECT_THAT(error, counts ? HasSubstr("accepted") : HasSubstr("'b"))
          << how.stage << to_string(how.weights) << loaders << error;
    }
  }
}

TEST(ModuleChanges, ForwardWithoutBackwardCountsNoSamples) {
  const Named expected = by_one_process(nothing);
  for (const auto& how : kCases) {
    comm::replicate(
        2,
        [&](const Group& group) {
          const at::Tensor more = torch::ones({50, 6}, at::kDouble);
          Parts parts = make_parts({});
          Sharded model(blocks_of(parts), group, optimizer_spec(kSgd, {}),
                        options_of(how.stage, how.weights));
          at::Tensor held;  // a graph that lives on and never goes backward
          for (int step = 0; step < internal::kSteps; ++step) {
            model.zero_grad();
            const bool gathers = how.stage == 3 && how.weights == Weights::kPrivate;
            if (group.rank() == 0 && !gathers) {
              held = model.forward(more);
              model.forward(more);
            }
            internal::train(model, group, step, {});
          }
          const auto state = model.state();
          if (group.rank() == 0)
            internal::expect_close(internal::weights_in(state, expected), expected, 1e-10,
                                   model.describe());
        },
        20s);
  }
}

// A module whose outputs have any type.
template <class Output>
struct AsImpl : torch::nn::Module {
  explicit AsImpl(std::function<Output(const at::Tensor&)> output)
      : fc(register_module("fc", torch::nn::Linear(6, 3))), wrap(std::move(output)) {
    const at::NoGradGuard guard;
    for (auto& p : parameters()) p.copy_(torch::arange(p.numel()).sin().view(p.sizes()));
  }
  Output forward(const at::Tensor& x) { return wrap(fc(x)); }
  torch::nn::Linear fc;
  std::function<Output(const at::Tensor&)> wrap;
};
struct Named2 {
  at::Tensor logits;
};

// Rank 0 has 2 samples, rank 1 has 6, and rank 0 makes passes that do not go backward.
template <class Output>
void expect_samples(const std::function<Output(const at::Tensor&)>& as,
                    const std::function<at::Tensor(const Output&)>& logits) {
  const at::Tensor x = (torch::arange(48, at::kFloat) * 0.37).sin().view({8, 6});
  const auto alone = std::make_shared<AsImpl<Output>>(as);
  loss_of(logits(alone->forward(x))).backward();
  comm::replicate(
      2,
      [&](Group group) {
        auto model = data_parallel(std::make_shared<AsImpl<Output>>(as), group);
        const auto held = model.forward(x);
        model.forward(x);
        const at::Tensor mine = group.rank() == 0 ? x.slice(0, 0, 2) : x.slice(0, 2, 8);
        loss_of(logits(model.forward(mine))).backward();
        require(at::allclose(model->fc->weight.grad(), alone->fc->weight.grad(), 1e-5, 1e-6),
                "gradients are not weighted by the samples that went backward");
      },
      20s);
}

TEST(ModuleChanges, SamplesAreCountedWhateverForwardReturns) {
  expect_samples<at::Tensor>([](const at::Tensor& y) { return y; },
                             [](const at::Tensor& y) { return y; });
  using Pair = std::pair<int, std::vector<at::Tensor>>;
  expect_samples<Pair>(
      [](const at::Tensor& y) {
        return Pair{1, {y.detach(), y}};
      },
      [](const Pair& pair) { return pair.second[1]; });
  expect_samples<Named2>([](const at::Tensor& y) { return Named2{y}; },
                         [](const Named2& named) { return named.logits; });
}

TEST(ModuleChanges, SamplesOfSeveralPassesInOneBackwardAddUp) {
  comm::replicate(
      2,
      [](Group group) {
        auto model = data_parallel(torch::nn::Linear(4, 1), group);
        const double value = group.rank() == 0 ? 1 : 4;
        const at::Tensor a = torch::full({group.rank() == 0 ? 1 : 3, 4}, value),
                         b = torch::full({1, 4}, value);
        (model.forward(a).mean() + model.forward(b).mean()).backward();
        // Of 2 samples the gradient is 1 + 1, of 4 samples it is 4 + 4.
        require(at::allclose(model->weight.grad(), torch::full({1, 4}, (2 * 2 + 4 * 8) / 6.0)),
                "the samples of both passes count");
      },
      20s);
}

// Without weft's optimizer each rank changes its own weights, and nothing makes them equal.
TEST(ModuleChanges, RanksThatDriftApartUnderTorchsOptimizerAreAnError) {
  const auto train = [](const Group& group, const std::function<void(at::Tensor&)>& change) {
    auto model = data_parallel(torch::nn::Linear(4, 2), group);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      if (step == 2) change(model->weight);
      model.forward(torch::ones({3, 4})).square().mean().backward();
      optimizer.step();
    }
  };
  const std::string error = error_of([&](const Group& group) {
    train(group, [&](at::Tensor& weight) {
      const at::NoGradGuard guard;
      weight.add_(group.rank());
    });
  });
  EXPECT_THAT(error, HasSubstr("the values of 'weight' differ between rank 0 and rank 1"));
  // Equal changes, and changes that were taken back, are none.
  comm::replicate(
      2,
      [&](Group group) {
        train(group, [&](at::Tensor& weight) {
          const at::NoGradGuard guard;
          weight.mul_(0.5);
          if (group.rank() == 0) weight.mul_(2).mul_(0.5);
        });
      },
      20s);
}

TEST(ModuleChanges, AStepOfTorchsOptimizerThatOneRankLeavesOutIsAnError) {
  EXPECT_THAT(error_of([](const Group& group) {
                auto model = data_parallel(torch::nn::Linear(4, 2), group);
                torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1e-4));
                for (int step = 0; step < 4; ++step) {
                  optimizer.zero_grad();
                  model.forward(torch::ones({3, 4})).square().mean().backward();
                  if (step != 2 || group.rank() != 1) optimizer.step();
                }
              }),
              AllOf(HasSubstr("the values of '"), HasSubstr("differ between rank 0 and rank 1"),
                    HasSubstr("call step() of its optimizer")));
}

}  // namespace module_changes_test
}  // namespace weft::engine

// What a program leaves, or does on one rank only, between two steps: it counts as in one process,
// or is an error that says what to do. module_changes_test.cc has changes of the module itself.
#include <gmock/gmock.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <future>
#include <optional>
#include <sstream>
#include <utility>

#include "weft/base/testing/refusal.h"
#include "weft/engine/testing/small_model.h"

namespace weft::engine {
namespace between_steps_test {

using namespace std::chrono_literals;
using internal::batch_of;
using internal::blocks_of;
using internal::Case;
using internal::kCases;
using internal::loss_of;
using internal::make_parts;
using internal::Named;
using internal::options_of;
using internal::Part;
using internal::part_of;
using internal::require;
using testing::AllOf;
using testing::HasSubstr;

const auto kSgd = torch::optim::SGDOptions(0.1).momentum(0.9);
constexpr double kClip = 0.05;
using Parts = std::vector<Part>;

std::string error_of(const std::function<void(const Group&)>& ranks, int world = 2) {
  return refusal([&] { comm::replicate(world, ranks, 20s); });
}

void backward(Sharded& model, const Group& group, int step) {
  loss_of(model.forward(part_of(batch_of(step, at::kDouble), group.rank(), group.size())))
      .backward();
}

// `between` is called before each forward pass.
using Between = std::function<void(Sharded& model, Parts& parts, int step)>;
void train(const Group& group, const Case& how, double clip, const Between& between,
           const Named* expected = nullptr) {
  Parts parts = make_parts({});
  Sharded model(blocks_of(parts), group, optimizer_spec(kSgd, {.max_grad_norm = clip}),
                options_of(how.stage, how.weights));
  for (int step = 0; step < internal::kSteps; ++step) {
    between(model, parts, step);
    backward(model, group, step);
    model.step();
  }
  const auto state = model.state();
  if (expected != nullptr && group.rank() == 0)
    internal::expect_close(internal::weights_in(state, *expected), *expected, 1e-10,
                           model.describe());
}

// One process that never drops its gradients.
Named without_zero_grad(double clip) {
  Parts parts = make_parts({});
  std::vector<at::Tensor> all;
  for (Part& part : parts) {
    for (at::Tensor& parameter : part->parameters()) all.push_back(parameter);
  }
  torch::optim::SGD optimizer(all, kSgd);
  for (int step = 0; step < internal::kSteps; ++step) {
    at::Tensor x = batch_of(step, at::kDouble);
    for (Part& part : parts) x = part(x);
    loss_of(x).backward();
    if (clip > 0) torch::nn::utils::clip_grad_norm_(all, clip);
    optimizer.step();
  }
  return internal::weights_of(parts);
}

// At stage 0 the sums take the place of a rank's gradients.
TEST(BetweenSteps, GradientsThatStepHasUsedAddUpOrAreAnError) {
  for (const double clip : {0.0, kClip}) {
    const Named expected = without_zero_grad(clip);
    for (const Case& how : kCases) {
      const auto ranks = [&](const Group& group) {
        train(
            group, how, clip, [](Sharded&, Parts&, int) {}, &expected);
      };
      if (how.stage > 0) {
        comm::replicate(2, ranks, 20s);
        continue;
      }
      EXPECT_THAT(error_of(ranks), AllOf(HasSubstr("backward() would add to the gradient of 'b"),
                                         HasSubstr("call zero_grad()")));
    }
  }
}

// Clipping scales the gradients of one process, and those of the engine stay as they are.
TEST(BetweenSteps, ClippedGradientsOfOneRankAreNotAddedTo) {
  const auto ranks = [](const Group& group) {
    train(group, {0, Weights::kPrivate}, kClip, [](Sharded&, Parts&, int) {});
  };
  EXPECT_THAT(error_of(ranks, 1), HasSubstr("call zero_grad()"));
}

void step_without_batch(const Group& group, const Case& how, bool second) {
  auto model =
      data_parallel(torch::nn::Linear(3, 1), group,
                    {.average = DataParallelOptions::Average::kByRanks, .weights = how.weights});
  auto optimizer = model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(1));
  {
    const at::NoGradGuard guard;
    model.module()->weight.set_data(torch::zeros({1, 3}));
  }
  for (int step = 0; step < 2; ++step) {
    if (step == 0 || (second && group.rank() == 0)) {
      optimizer.zero_grad();
      model.forward(torch::ones({1, 3})).sum().backward();
    }
    optimizer.step();
  }
  // The gradient is 1 on both ranks, then 1 and none.
  internal::require(at::allclose(model->weight, torch::full({1, 3}, -1.5)), "the weights");
}

TEST(BetweenSteps, ARankWithoutABatchDoesNotCountItsLastGradientsAgain) {
  for (const Weights weights : {Weights::kShared, Weights::kPrivate}) {
    comm::replicate(
        2,
        [&](const Group& group) {
          step_without_batch(group, {0, weights}, true);
        },
        20s);
    EXPECT_THAT(error_of([&](const Group& group) {
                  step_without_batch(group, {0, weights}, false);
                }),
                HasSubstr("step() was called again without backward() on any rank"));
  }
}

// Rank 0 has 1 sample, rank 1 has 3. Passes whose gradients are dropped have 8 and 2.
TEST(BetweenSteps, SamplesOfDroppedGradientsDoNotCount) {
  comm::replicate(
      2,
      [](Group group) {
        auto model = data_parallel(torch::nn::Linear(4, 1), group);
        auto optimizer = model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(1));
        const at::Tensor before = model->weight.detach().clone();
        const bool first = group.rank() == 0;
        {
          const auto guard = model.no_sync();
          model.forward(torch::ones({first ? 8 : 2, 4})).mean().backward();
        }
        optimizer.zero_grad();
        model.forward(torch::full({first ? 1 : 3, 4}, first ? 1.0 : 5.0)).mean().backward();
        optimizer.step();
        internal::require(at::allclose(before - model->weight, torch::full({1, 4}, 4.0)),
                          "the weighted mean of 1 and 5");
      },
      20s);
}

// Rank 0 goes backward twice before a step.
void drop_on_rank_0(const Group& group, Weights weights) {
  auto model = data_parallel(torch::nn::Linear(4, 2), group, {.weights = weights});
  auto optimizer = model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.01));
  const auto backward = [&] { model.forward(torch::ones({3, 4})).sum().backward(); };
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    backward();
    if (step == 1 && group.rank() == 0) {
      optimizer.zero_grad();
      backward();
    }
    optimizer.step();
  }
}

TEST(BetweenSteps, GradientsThatOneRankDropsAreAnError) {
  for (const Weights weights : {Weights::kPrivate, Weights::kShared}) {
    EXPECT_THAT(error_of([&](const Group& group) { drop_on_rank_0(group, weights); }),
                HasSubstr("zero_grad() has dropped the gradients of a batch on this rank, and "
                          "not on rank 1; drop them on all ranks"));
  }
}

// Rank 1 is in step() long before rank 0 goes forward again.
TEST(BetweenSteps, AForwardPassBeforeStepSeesTheWeightsOfTheLastOne) {
  for (const Weights weights : {Weights::kPrivate, Weights::kShared}) {
    comm::replicate(
        2,
        [&](const Group& group) {
          torch::manual_seed(1);
          const torch::nn::Linear linear(512, 512);
          auto model = data_parallel(linear, group, {.weights = weights});
          auto optimizer = model.optimizer<torch::optim::SGD>(kSgd);
          const at::Tensor x = at::ones({4, 512});
          for (int step = 0; step < 3; ++step) {
            optimizer.zero_grad();
            const at::Tensor y = model->forward(x);
            y.square().mean().backward();
            if (group.rank() == 0) {
              std::this_thread::sleep_for(30ms);
              EXPECT_TRUE(at::equal(model->forward(x), y)) << "step " << step;
            }
            optimizer.step();
          }
        },
        20s);
  }
}

// It catches an error of its own, and leaves while rank 1 waits for it.
TEST(BetweenSteps, AModelThatEndsInTheMiddleOfAStepIsAnErrorOnOtherRanks) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(
      refusal(
          [&] {
            comm::replicate(
                2,
                [](const Group& group) {
                  torch::nn::Sequential net(torch::nn::Linear(8, 8), torch::nn::Linear(8, 8));
                  auto model = data_parallel(net, group);
                  torch::optim::SGD optimizer(net->parameters(), kSgd);
                  at::Tensor y = net->forward(at::ones({2, 8}, at::kFloat).requires_grad_());
                  if (group.rank() == 0) {
                    net[0]->as<torch::nn::Linear>()->weight.register_hook(
                        [](const at::Tensor&) { throw std::runtime_error("of a program"); });
                    EXPECT_THROW(y.sum().backward(), std::exception);
                    return;
                  }
                  y.sum().backward();
                },
                20s);
          },
          Errc::kAborted),
      HasSubstr("rank 0 has ended its model before the end of a step"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
}

// The gradient goes through an output of the model, and ends before it reaches a parameter.
TEST(BetweenSteps, ABackwardThatThrowsDoesNotCountItsSamples) {
  const auto trained = [](bool& fails, const auto& step) {
    const auto end = [&fails](const at::Tensor& h) {
      if (fails && h.requires_grad())
        h.register_hook([](const at::Tensor&) { throw std::runtime_error("of a program"); });
      return h * 1;
    };
    torch::nn::Sequential net(torch::nn::Linear(6, 4), torch::nn::Functional(end));
    net->to(torch::kDouble);
    internal::fill(*net);
    step(net);
    return net[0]->as<torch::nn::Linear>()->weight.detach().clone();
  };
  const at::Tensor x = batch_of(0, at::kDouble);
  bool never = false;
  const at::Tensor expected = trained(never, [&](auto& net) {
    torch::optim::SGD optimizer(net->parameters(), kSgd);
    loss_of(net->forward(x)).backward();
    optimizer.step();
  });
  comm::replicate(
      2,
      [&](const Group& group) {
        const at::Tensor mine = part_of(x, group.rank(), group.size());
        bool fails = group.rank() == 0;
        const at::Tensor weight = trained(fails, [&](auto& net) {
          auto model = data_parallel(net, group, {.weights = Weights::kPrivate});
          auto optimizer = model.template optimizer<torch::optim::SGD>(kSgd);
          if (fails) {
            EXPECT_THROW(loss_of(model.forward(mine)).backward(), std::exception);
            fails = false;
          }
          loss_of(model.forward(mine)).backward();
          optimizer.step();
        });
        require(at::allclose(weight, expected, 1e-10, 1e-10), "other weights");
      },
      20s);
}

TEST(BetweenSteps, SumsAreNotReadOnceARankHasEndedItsModel) {
  std::promise<void> left;
  EXPECT_THAT(refusal(
                  [&] {
                    comm::replicate(
                        2,
                        [&](const Group& group) {
                          const Parts parts = make_parts({});
                          std::optional<Sharded> model(std::in_place, blocks_of(parts), group,
                                                       optimizer_spec(kSgd, {}),
                                                       options_of(0, Weights::kShared));
                          backward(*model, group, 0);
                          model->await_gradients();
                          if (group.rank() == 0) {
                            model.reset();
                            left.set_value();
                            return;
                          }
                          left.get_future().wait_for(10s);
                          model->each_gradient([](const std::string& name, const at::Tensor&) {
                            ADD_FAILURE() << "read '" << name << "'";
                          });
                        },
                        20s);
                  },
                  Errc::kAborted),
              HasSubstr("rank 0 has ended its model before the end of a step"));
}

TEST(BetweenSteps, GradientsThatOneRankDropsAreAnErrorOverTcp) {
  const auto codes = comm::fork_ranks(2, "tcp", [](const Group& group) {
    try {
      drop_on_rank_0(group, Weights::kPrivate);
    } catch (const Error& error) {
      constexpr const char* kDropped =
          "dropped batches before this step: 1 on rank 0 and 0 on rank 1";
      return std::string(error.what()).find(kDropped) != std::string::npos ? 0 : 1;
    }
    return 2;
  });
  EXPECT_EQ(codes, (std::vector<int>{0, 0}));
}

TEST(BetweenSteps, OtherLearningRatesAreAnError) {
  for (const Case& how : kCases) {
    const auto ranks = [&](const Group& group) {
      train(group, how, 0, [&](Sharded& model, Parts&, int step) {
        model.zero_grad();
        if (step == 2 && group.rank() == 1) model.set_lr(0.025);
      });
    };
    EXPECT_THAT(error_of(ranks), HasSubstr("the learning rate is 0.1 on rank 0 and 0.025 on rank "
                                           "1; call set_lr() alike on all ranks"))
        << how.stage;
  }
}

// The ranks write as often as each other, so only the values tell.
TEST(BetweenSteps, OtherLearningRatesOfTorchsOptimizerAreFound) {
  const auto ranks = [](const Group& group) {
    auto model = data_parallel(torch::nn::Linear(4, 2), group);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01));
    for (int step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      if (step == 5 && group.rank() == 1) optimizer.param_groups()[0].options().set_lr(0.001);
      model.forward(torch::ones({3, 4})).sum().backward();
      optimizer.step();
    }
  };
  EXPECT_THAT(error_of(ranks),
              HasSubstr("the values of 'weight' differ between rank 0 and rank 1"));
}

TEST(BetweenSteps, PrivateWeightsWrittenThroughDataOnOneRankAreFound) {
  const auto ranks = [](const Group& group) {
    auto model = data_parallel(torch::nn::Linear(4, 2), group, {.weights = Weights::kPrivate});
    auto optimizer = model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.01));
    for (int step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      if (step == 5 && group.rank() == 1) model->weight.data().add_(0.1);
      model.forward(torch::ones({3, 4})).sum().backward();
      optimizer.step();
    }
  };
  EXPECT_THAT(error_of(ranks),
              HasSubstr("the values of 'weight' differ between rank 0 and rank 1"));
}

TEST(BetweenSteps, OtherModesAndBuffersAreAnError) {
  const auto grow = [](Parts& parts) {
    parts[1]->named_buffers()["seen"].set_data(torch::zeros({9}));
  };
  for (const Case& how : kCases) {
    EXPECT_THAT(error_of([&](const Group& group) {
                  train(group, how, 0, [&](Sharded& model, Parts& parts, int step) {
                    model.zero_grad();
                    for (Part& part : parts) part->train(step < 2 || group.rank() == 0);
                  });
                }),
                HasSubstr("rank 0 has 'b0 in train()', and rank 1 has 'b0 in eval()'; call "
                          "train() and eval()"))
        << how.stage;
    for (const int rank : {0, 1}) {
      EXPECT_THAT(error_of([&](const Group& group) {
                    Parts parts = make_parts({});
                    parts[1]->register_buffer("seen", torch::zeros({4}));
                    Sharded model(blocks_of(parts), group, optimizer_spec(kSgd, {}),
                                  options_of(how.stage, how.weights));
                    if (group.rank() == rank) grow(parts);
                    backward(model, group, 0);
                    model.step();
                  }),
                  HasSubstr("'buffer b1.seen Float[" + std::string(rank == 0 ? "9]'" : "4]'")))
          << how.stage;
    }
  }
}

TEST(BetweenSteps, GradientsOfUnknownSamplesBesideKnownOnesAreAnError) {
  for (const int direct : {0, 1}) {
    EXPECT_THAT(error_of([&](Group group) {
                  auto model = data_parallel(torch::nn::Linear(4, 2), group);
                  auto optimizer =
                      model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
                  const at::Tensor x = torch::ones({3, 4});
                  (group.rank() == direct ? model->forward(x) : model.forward(x)).sum().backward();
                  optimizer.step();
                }),
                HasSubstr("the samples of the gradients on rank " + std::to_string(direct) +
                          " are not known"));
  }
}

TEST(BetweenSteps, ParametersWithCommonMemoryAreAnError) {
  const auto tie = [](Parts& parts) { parts[2]->fc->bias.set_data(parts[1]->fc->bias.data()); };
  for (const Case& how : kCases) {
    EXPECT_THAT(error_of([&](const Group& group) {
                  Parts parts = make_parts({});
                  tie(parts);
                  Sharded model(blocks_of(parts), group, optimizer_spec(kSgd, {}),
                                options_of(how.stage, how.weights));
                }),
                AllOf(HasSubstr("'b1.fc.bias'"), HasSubstr("'b2.fc.bias'"),
                      HasSubstr("have the same memory"), HasSubstr("to tie them, register one")));
    if (how.stage == 3 && how.weights == Weights::kPrivate) continue;  // without values to tie
    EXPECT_THAT(error_of([&](const Group& group) {
                  train(group, how, 0, [&](Sharded& model, Parts& parts, int step) {
                    model.zero_grad();
                    if (step == 2) tie(parts);
                  });
                }),
                HasSubstr("have the same memory"))
        << how.stage;
  }
}

// A rank that is not told to drop its gradients would add the next ones to them.
TEST(BetweenSteps, ZeroGradOfSomeRanksIsAnErrorUnderZero) {
  for (const Case& how : kCases) {
    if (how.stage == 0) continue;
    EXPECT_THAT(error_of([&](const Group& group) {
                  train(group, how, 0, [&](Sharded& model, Parts&, int step) {
                    if (step != 2 || group.rank() == 0) model.zero_grad();
                  });
                }),
                HasSubstr("zero_grad() was not called on rank 1 before this step"))
        << how.stage;
  }
}

// At stage 3, step() itself is not collective.
TEST(BetweenSteps, AStepThatOneRankLeavesOutIsAnErrorUnderZero) {
  EXPECT_THAT(error_of([&](const Group& group) {
                Parts parts = make_parts({});
                Sharded model(blocks_of(parts), group, optimizer_spec(kSgd, {}),
                              options_of(3, Weights::kPrivate));
                for (int step = 0; step < 3; ++step) {
                  model.zero_grad();
                  backward(model, group, step);
                  if (step != 1 || group.rank() == 0) model.step();
                }
              }),
              HasSubstr("rank 0 has made 2 steps and rank 1 1; call step() equally often"));
}

TEST(BetweenSteps, SavingWeightsThatAreDividedIsAnError) {
  const auto saved = [](const Group& group, Weights weights) {
    Parts parts = make_parts({});
    Sharded model(blocks_of(parts), group, optimizer_spec(kSgd, {}), options_of(3, weights));
    for (int step = 0; step < 2; ++step) {
      std::ostringstream file;
      std::string error;
      try {
        torch::save(parts[1], file);
      } catch (const c10::Error& what) {
        error = what.what_without_backtrace();
      }
      if (weights == Weights::kShared) {
        EXPECT_EQ(error, "");
      } else {
        EXPECT_THAT(error, AllOf(HasSubstr("are divided over the ranks between two steps"),
                                 HasSubstr("to read them, call state()")));
      }
      model.zero_grad();
      backward(model, group, step);
      model.step();
    }
  };
  for (const Weights weights : {Weights::kShared, Weights::kPrivate})
    comm::replicate(
        2, [&](const Group& group) { saved(group, weights); }, 20s);
}

}  // namespace between_steps_test
}  // namespace weft::engine

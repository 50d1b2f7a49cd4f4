// Changes that no hook of weft sees when the program makes them: each counts as in one process, or
// is an error before weights of the ranks differ.
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <vector>

#include "weft/base/testing/refusal.h"
#include "weft/engine/testing/trainer.h"

namespace weft::engine {
namespace unseen_changes_test {

using namespace std::chrono_literals;
using internal::batch_of;
using internal::blocks_of;
using internal::loss_of;
using internal::make_parts;
using internal::options_of;
using internal::require;
using testing::AllOf;
using testing::HasSubstr;

using Average = DataParallelOptions::Average;
const auto kSgd = torch::optim::SGDOptions(0.1);

std::string error_of(const std::function<void(const Group&)>& ranks) {
  try {
    comm::replicate(2, ranks, 20s);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument) << error.what();
    return error.what();
  }
  return "no error";
}

// One rank alone writes a weight before the optimizer's state is loaded.
TEST(UnseenChanges, AWeightThatOneRankWroteBeforeLoadStateIsAnError) {
  const auto ranks = [](int writers) {
    return [writers](const Group& group) {
      auto model = data_parallel(torch::nn::Linear(4, 2), group, {.weights = Weights::kPrivate});
      auto optimizer = model.optimizer<torch::optim::SGD>(kSgd);
      const auto state = optimizer.state();
      if (group.rank() < writers) {
        const at::NoGradGuard guard;
        model->weight.mul_(2);
      }
      optimizer.load_state(state);
    };
  };
  EXPECT_THAT(error_of(ranks(1)), HasSubstr("the values of 'weight' differ between rank 0 and"));
  EXPECT_EQ(error_of(ranks(2)), "no error");
}

// Two passes of rank r with inputs r + 1 and 10 (r + 1).
struct Twice {
  Average average = Average::kSum;
  bool pauses = false, drops = false;
  std::function<void(at::Tensor& gradient)> change = nullptr;  // between the passes
};
at::Tensor weight_after(const Group& group, const Twice& how) {
  const torch::nn::Linear linear(torch::nn::LinearOptions(1, 1).bias(false));
  auto model = data_parallel(linear, group, {.average = how.average});
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1));
  const at::Tensor before = model->weight.detach().clone();
  const auto backward = [&](double value) {
    model.forward(torch::full({1, 1}, value)).sum().backward();
  };
  {
    const auto pause = how.pauses ? habits::pause(model) : nullptr;
    backward(group.rank() + 1);
  }
  if (how.drops) optimizer.zero_grad();
  if (how.change) how.change(model->weight.mutable_grad());
  backward(10 * (group.rank() + 1));
  optimizer.step();
  return before - model->weight;
}

TEST(UnseenChanges, ASecondBackwardAfterASumOfGradientsIsAnError) {
  for (const Average average : {Average::kSum, Average::kAdasum}) {
    EXPECT_THAT(error_of([&](const Group& group) { weight_after(group, {.average = average}); }),
                AllOf(HasSubstr("would add to the gradient of 'weight', which the ranks have "
                                "combined already"),
                      HasSubstr("wrap all but the last backward() in no_sync()")));
  }
  comm::replicate(
      2,
      [](const Group& group) {
        const auto expect = [&](const Twice& how, double change) {
          require(at::allclose(weight_after(group, how), torch::full({1, 1}, change)),
                  "the sum is not " + std::to_string(change));
        };
        expect({.pauses = true}, 33);
        expect({.drops = true}, 30);
        expect({.average = Average::kByRanks}, 16.5);
        expect({.change = [](at::Tensor& gradient) { gradient.zero_(); }}, 30);
      },
      20s);
}

TEST(UnseenChanges, ASecondBackwardAfterAChangeOfASumOfGradientsIsAnError) {
  const std::vector<std::function<void(at::Tensor&)>> changes{
      [](at::Tensor& gradient) { gradient.mul_(0.5); },
      [](at::Tensor& gradient) { gradient = gradient * 0.5; }};
  for (const auto& change : changes) {
    EXPECT_THAT(error_of([&](const Group& group) { weight_after(group, {.change = change}); }),
                HasSubstr("would add to the gradient of 'weight', which the ranks have combined "
                          "already"));
  }
}

void throw_at(const at::Tensor& h) {
  h.register_hook(
      [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("of a program"); });
}

// The gradient ends between two blocks, when those of later blocks have left.
void break_backward(Sharded& model, std::size_t blocks, const at::Tensor& x, bool fails) {
  Tensors h{x};
  for (std::size_t block = 0; block < blocks; ++block) {
    h = model.run(block, h);
    if (fails && block == 1) throw_at(h[0]);
  }
  loss_of(h[0]).backward();
}

std::string error_of_call(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(UnseenChanges, ABackwardThatThrowsAfterGradientsHaveLeftIsAnError) {
  for (const int stage : {2, 3}) {
    for (const Weights weights : {Weights::kPrivate, Weights::kShared}) {
      comm::replicate(
          2,
          [&](const Group& group) {
            const auto parts = make_parts({});
            Sharded model(blocks_of(parts), group, optimizer_spec(kSgd, {}),
                          options_of(stage, weights));
            const at::Tensor x = batch_of(0, at::kDouble);
            EXPECT_THROW(break_backward(model, parts.size(), x, true), std::exception);
            group.barrier();  // the first call ends what the other rank waits for
            for (const auto& call : std::vector<std::function<void()>>{
                     [&] { model.zero_grad(); }, [&] { model.step(); }, [&] { model.forward(x); }})
              EXPECT_THAT(error_of_call(call),
                          HasSubstr("a backward() of this model ended by an exception"))
                  << "stage " << stage << (weights == Weights::kShared ? ", shared" : "");
          },
          20s);
    }
  }
}

TEST(UnseenChanges, ABackwardThatThrowsOnOneRankEndsTheWaitsOfOthers) {
  for (const int stage : {2, 3}) {
    EXPECT_THAT(refusal(
                    [&] {
                      comm::replicate(
                          2,
                          [&](const Group& group) {
                            const auto parts = make_parts({});
                            Sharded model(blocks_of(parts), group, optimizer_spec(kSgd, {}),
                                          options_of(stage, Weights::kPrivate));
                            const bool fails = group.rank() == 0;
                            const auto run = [&] {
                              break_backward(model, parts.size(), batch_of(0, at::kDouble), fails);
                            };
                            if (!fails) {
                              run();
                              model.step();
                              return;
                            }
                            EXPECT_THROW(run(), std::exception);
                            expect_refused([&] { model.zero_grad(); }, Errc::kInvalidArgument,
                                           "ended by an exception");
                          },
                          20s);
                    },
                    Errc::kAborted),
                AllOf(HasSubstr("rank 0 ended a step by: "), HasSubstr("ended by an exception")));
  }
}

// At stage 1, gradients stay on their rank until step().
TEST(UnseenChanges, ABackwardThatThrowsBeforeGradientsLeaveIsDroppedByZeroGrad) {
  const auto expected = internal::by_torch<torch::optim::SGD>({}, kSgd);
  comm::replicate(
      2,
      [&](const Group& group) {
        const auto parts = make_parts({});
        Sharded model(blocks_of(parts), group, optimizer_spec(kSgd, {}),
                      options_of(1, Weights::kPrivate));
        if (group.rank() == 0) {
          const at::Tensor x = batch_of(7, at::kDouble);
          EXPECT_THROW(break_backward(model, parts.size(), x, true), std::exception);
        }
        internal::compare(model, group, expected, {});
      },
      20s);
}

// Steps by gradients that torch::autograd::grad() has made.
void step_by_grad(DataParallel<torch::nn::LinearImpl>& model, torch::optim::SGD& optimizer,
                  const Group& group) {
  const auto parameters = model->parameters();
  const at::Tensor y = model.forward(torch::full({2, 4}, group.rank() + 1.0));
  const auto gradients = torch::autograd::grad({y.sum()}, parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = gradients[i];
  optimizer.step();
}

TEST(UnseenChanges, AStepByGradientsOfGradIsAnError) {
  for (const bool trained_before : {false, true}) {
    EXPECT_THAT(error_of([&](const Group& group) {
                  auto model = data_parallel(torch::nn::Linear(4, 2), group);
                  torch::optim::SGD optimizer(model->parameters(), kSgd);
                  if (trained_before) {
                    model.forward(torch::ones({2, 4})).sum().backward();
                    optimizer.step();
                    optimizer.zero_grad();
                  }
                  step_by_grad(model, optimizer, group);
                  model.forward(torch::ones({2, 4}));
                }),
                AllOf(HasSubstr("torch::autograd::grad() had taken gradients"),
                      HasSubstr("use backward(), or weft's optimizer")));
  }
}

// A penalty, a look at gradients, and an input's gradient are no steps.
TEST(UnseenChanges, GradBesideBackwardIsAllowed) {
  comm::replicate(
      2,
      [](const Group& group) {
        torch::nn::Sequential net(torch::nn::Linear(4, 3), torch::nn::Linear(3, 1));
        auto model = data_parallel(net, group);
        torch::optim::SGD optimizer(net->parameters(), kSgd);
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          const at::Tensor x = torch::ones({2, 4}).requires_grad_();
          const at::Tensor y = model.forward(x).sum();
          const at::Tensor slope = torch::autograd::grad({y}, {x}, {}, true, true)[0];
          const at::Tensor of_weight =
              torch::autograd::grad({y}, {net->parameters()[0]}, {}, true, true)[0];
          const at::Tensor other = model.forward(torch::ones({2, 4})).sum();
          (other + slope.square().sum() + of_weight.square().sum()).backward();
          const at::Tensor late = model.forward(torch::ones({2, 4})).sum();
          torch::autograd::grad({late}, net->parameters());
          optimizer.step();
        }
        model.forward(torch::ones({2, 4}));
      },
      20s);
}

// `change` gets the module after the first step.
std::string error_of_buffers(int stage, bool synchronized,
                             const std::function<void(torch::nn::SequentialImpl&)>& change) {
  return error_of([&](const Group& group) {
    torch::nn::Sequential net(
        torch::nn::Linear(4, 3),
        torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(3).affine(false)));
    ShardedOptions options{.stage = stage, .average = Average::kByRanks};
    options.sync_buffers = options.data_parallel.sync_buffers = synchronized;
    Sharded model({{.name = "net",
                    .module = net.ptr(),
                    .forward = [&](const Tensors& x) { return Tensors{net->forward(x[0])}; }}},
                  group, optimizer_spec(kSgd, {}), options);
    for (int step = 0; step < 2; ++step) {
      model.zero_grad();
      model.forward(torch::arange(12.F).view({3, 4}) + group.rank()).square().sum().backward();
      model.step();
      if (step == 0) change(*net);
    }
  });
}

TEST(UnseenChanges, ABufferThatCameOrWentIsAnErrorIfBuffersAreSynchronized) {
  const auto add = [](torch::nn::SequentialImpl& net) {
    net.register_buffer("mean", torch::zeros({2}));
  };
  const auto replace = [](torch::nn::SequentialImpl& net) {
    net.replace_module("1", torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(3).affine(false)));
  };
  const auto remove = [](torch::nn::SequentialImpl& net) { net.unregister_module("1"); };
  const auto load = [](torch::nn::SequentialImpl& net) {
    for (at::Tensor& buffer : net.buffers()) buffer.set_data(buffer.clone());
    net.to(at::kFloat);
  };
  for (const int stage : {0, 2}) {
    EXPECT_THAT(error_of_buffers(stage, true, add),
                HasSubstr("'net.mean' became a buffer of the module after"));
    EXPECT_THAT(error_of_buffers(stage, true, replace),
                HasSubstr("'net.1.running_mean' became a buffer of the module after"));
    EXPECT_THAT(error_of_buffers(stage, true, remove),
                HasSubstr("'net.1.running_mean' is no longer a buffer"));
    EXPECT_EQ(error_of_buffers(stage, true, load), "no error") << stage;
    EXPECT_EQ(error_of_buffers(stage, false, add), "no error") << stage;
  }
}

}  // namespace unseen_changes_test
}  // namespace weft::engine

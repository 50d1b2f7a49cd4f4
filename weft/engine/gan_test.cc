// Two models in one program, whose gradients pass through each other.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "weft/engine/testing/trainer.h"

namespace weft::engine {
namespace gan_test {

using namespace std::chrono_literals;
using internal::batch_of;
using internal::loss_of;
using internal::Named;

// A generator and a discriminator. Gradients pass through the discriminator, which drops its own.
struct Gan {
  explicit Gan(bool norm = false)
      : generator(torch::nn::Linear(6, 10), torch::nn::Tanh()),
        discriminator(torch::nn::Linear(10, 8)) {
    if (norm) discriminator->push_back(torch::nn::BatchNorm1d(8));
    discriminator->push_back(torch::nn::Tanh());
    discriminator->push_back(torch::nn::Linear(8, 1));
    double phase = 0;
    for (torch::nn::Sequential* net : {&generator, &discriminator}) {
      (*net)->to(at::kDouble);
      phase = internal::fill(**net, phase);
    }
  }
  Named weights() const {
    Named all;
    internal::add_weights(all, "generator.", *generator);
    internal::add_weights(all, "discriminator.", *discriminator);
    return all;
  }
  torch::nn::Sequential generator, discriminator;
};

// `pause()` gives the guard under which the discriminator keeps its gradients to itself.
template <class Generator, class Discriminator, class Optimizer>
void train_gan(const Generator& make, const Discriminator& judge, Optimizer& of_generator,
               Optimizer& of_discriminator, const std::function<std::shared_ptr<void>()>& pause,
               const std::function<at::Tensor(int step)>& noise) {
  for (int step = 0; step < 4; ++step) {
    const at::Tensor fake = make(noise(step)), real = (noise(step + 9) * 2).repeat({1, 2});
    of_discriminator.zero_grad();
    (loss_of(judge(real.slice(1, 0, 10))) + loss_of(judge(fake.detach()))).backward();
    of_discriminator.step();
    of_generator.zero_grad();
    {
      const auto guard = pause();
      loss_of(judge(fake)).backward();
    }
    of_generator.step();
  }
}

using Sgd = torch::optim::SGD;

struct How {
  DataParallelOptions options = {};
  bool torch_optimizer = false;
  // Else zero_grad() drops what the generator's pass leaves in the discriminator.
  bool pauses = false;
  // With a batch norm. Each rank has the whole batch, so that the statistics are those of one
  // process.
  bool norm = false;
};

void compare_gan(const Group& group, const How& how) {
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  Gan alone(how.norm);
  {
    Sgd first(alone.generator->parameters(), options);
    Sgd second(alone.discriminator->parameters(), options);
    train_gan([&](const at::Tensor& x) { return alone.generator->forward(x); },
              [&](const at::Tensor& x) { return alone.discriminator->forward(x); }, first, second,
              [] { return nullptr; }, [](int step) { return batch_of(step, at::kDouble); });
  }
  Gan gan(how.norm);
  auto generator = data_parallel(gan.generator, group, how.options);
  auto discriminator = data_parallel(gan.discriminator, group, how.options);
  const auto train = [&](auto first, auto second) {
    train_gan([&](const at::Tensor& x) { return generator.forward(x); },
              [&](const at::Tensor& x) { return discriminator.forward(x); }, first, second,
              [&] { return how.pauses ? habits::pause(discriminator) : nullptr; },
              [&](int step) {
                const at::Tensor all = batch_of(step, at::kDouble);
                return how.norm ? all : internal::part_of(all, group.rank(), group.size());
              });
  };
  if (how.torch_optimizer) {
    train(Sgd(gan.generator->parameters(), options), Sgd(gan.discriminator->parameters(), options));
  } else {
    train(generator.optimizer<Sgd>(options), discriminator.optimizer<Sgd>(options));
  }
  internal::expect_close(gan.weights(), alone.weights(), 1e-8, "a GAN");
}

TEST(Gan, TrainsAsInOneProcess) {
  for (const bool torch_optimizer : {false, true}) {
    for (const Weights weights : {Weights::kPrivate, Weights::kShared}) {
      for (const bool pauses : {true, false}) {
        comm::replicate(
            2,
            [&](const Group& group) {
              compare_gan(group, {.options = {.weights = weights},
                                  .torch_optimizer = torch_optimizer,
                                  .pauses = pauses});
            },
            20s);
      }
    }
  }
}

// The batch whose gradients zero_grad() has dropped ends within the next backward(), after the
// forward passes that have saved the statistics.
TEST(Gan, WithABatchNormTrainsAsInOneProcess) {
  using Average = DataParallelOptions::Average;
  for (const Average average : {Average::kBySamples, Average::kAdasum}) {
    const How how{.options = {.average = average, .weights = Weights::kPrivate}, .norm = true};
    comm::replicate(
        2, [&](const Group& group) { compare_gan(group, how); }, 20s);
    const auto codes = comm::fork_ranks(2, "tcp", [&](const Group& group) {
      compare_gan(group, how);
      return 0;
    });
    EXPECT_EQ(codes, std::vector<int>(2, 0));
  }
}

// The penalty of the gradient by the input, without another loss. Its graph does not contain the
// output of the discriminator. Ranks have 5 and 6 rows.
template <class Judge, class Optimizer>
void take_penalty_steps(const Judge& judge, Optimizer& optimizer, int rank, int ranks) {
  for (int step = 0; step < 2; ++step) {
    const at::Tensor rows = internal::part_of(batch_of(step, at::kDouble), rank, ranks);
    const at::Tensor x = rows.repeat({1, 2}).slice(1, 0, 10).clone().requires_grad_();
    optimizer.zero_grad();
    const at::Tensor slope =
        torch::autograd::grad({judge(x).sum()}, {x}, /*grad_outputs=*/{}, /*retain_graph=*/true,
                              /*create_graph=*/true)[0];
    slope.square().sum(1).mean().backward();
    optimizer.step();
  }
}

TEST(Gan, APenaltyThatGoesBackwardAloneIsWeightedByItsSamples) {
  const auto options = torch::optim::SGDOptions(0.1);
  Gan alone;
  Sgd of_alone(alone.discriminator->parameters(), options);
  take_penalty_steps([&](const at::Tensor& x) { return alone.discriminator->forward(x); }, of_alone,
                     0, 1);
  const auto compare = [&](const Group& group, const char* what, const auto& train) {
    Gan gan;
    train(gan);
    internal::expect_close(gan.weights(), alone.weights(), 1e-10,
                           what + (" on rank " + std::to_string(group.rank())));
  };
  const auto run = [&](const Group& group) {
    const auto take_steps = [&](auto& model, auto& optimizer) {
      take_penalty_steps([&](const at::Tensor& x) { return model.forward(x); }, optimizer,
                         group.rank(), group.size());
    };
    compare(group, "torch::optim", [&](Gan& gan) {
      auto model = data_parallel(gan.discriminator, group);
      Sgd optimizer(gan.discriminator->parameters(), options);
      take_steps(model, optimizer);
    });
    compare(group, "weft's optimizer", [&](Gan& gan) {
      auto model = data_parallel(gan.discriminator, group, {.weights = Weights::kPrivate});
      auto optimizer = model.optimizer<Sgd>(options);
      take_steps(model, optimizer);
    });
    compare(group, "ZeRO-2", [&](Gan& gan) {
      Sharded model({block("net", gan.discriminator)}, group, optimizer_spec(options, {}),
                    internal::options_of(2, Weights::kPrivate));
      take_steps(model, model);
    });
  };
  comm::replicate(2, run, 20s);
}

}  // namespace gan_test
}  // namespace weft::engine

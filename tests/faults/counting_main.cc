// Counts in its weights how often each sample was used: for resize_test.py.
//
// Sample i is the i-th unit vector, the model is one weight for each sample, and the loss is its
// sum. SGD without momentum at rate 1 then subtracts 1/batch from weight i each time that sample i
// is used. The numbers are powers of two, so the sums are exact.
//   counting EPOCHS STEP_MS [MICRO_BATCHES [private [STRATEGY]]]
// With downpour on a power of two of ranks, the sums are exact, too: those of the center, which the
// last rank to exchange has read.
// Training also ends, within an epoch, when there is a file named "enough".
#include <torch/data.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <thread>

#include "weft/weft.h"

namespace {

constexpr std::int64_t kSamples = 512, kBatch = 16;

struct UnitVectors : torch::data::Dataset<UnitVectors> {
  torch::data::Example<> get(std::size_t i) override {
    auto vector = torch::zeros({kSamples});
    vector[static_cast<std::int64_t>(i)] = 1;
    return {vector, torch::zeros({1})};
  }
  std::optional<std::size_t> size() const override { return kSamples; }
};

struct CountImpl : torch::nn::Module {
  CountImpl() { weight = register_parameter("weight", torch::zeros({kSamples})); }
  torch::Tensor forward(const torch::Tensor& vectors) { return vectors.mv(weight); }
  torch::Tensor weight;
};
TORCH_MODULE(Count);

// The number of samples that were not used once in each epoch. After `steps` steps, the last epoch
// may be incomplete. Its samples were then used once more than the others.
std::int64_t miscounted(const torch::Tensor& weight, std::int64_t steps) {
  const auto used = -weight.detach().to(torch::kDouble) * kBatch;
  const std::int64_t epochs = steps * kBatch / kSamples, begun = steps * kBatch % kSamples;
  std::int64_t wrong = 0, once_more = 0;
  for (std::int64_t i = 0; i < kSamples; ++i) {
    const double times = used[i].item<double>();
    once_more += times == static_cast<double>(epochs + 1) ? 1 : 0;
    if (times == static_cast<double>(epochs) || times == static_cast<double>(epochs + 1)) continue;
    if (++wrong <= 3) std::cerr << "sample " << i << " was used " << times << " times\n";
  }
  if (once_more != begun)
    std::cerr << once_more << " samples of the last epoch were used, and not " << begun << "\n";
  return wrong + std::abs(once_more - begun);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  try {
    const auto world = weft::init();
    Count model;
    const auto step_time = std::chrono::milliseconds(std::atoi(argv[2]));
    weft::Task task(weft::blocks_of(model),
                    [step_time](const torch::Tensor& output, const torch::Tensor&) {
                      std::this_thread::sleep_for(step_time);
                      return output.mean();
                    });
    task.train = weft::train::dataset(UnitVectors());
    weft::train::Options options;
    options.epochs = std::atoi(argv[1]);
    options.batch = kBatch;
    options.checkpoint_steps = 64;
    options.plan.optimizer = weft::optimizer_spec(torch::optim::SGDOptions(1.0), {});
    options.schedule.shape = weft::optim::LearningRate::Shape::kConstant;
    if (argc > 3) options.plan.micro_batches = std::atoi(argv[3]);
    if (argc > 4) options.plan.weights = weft::Weights::kPrivate;
    if (argc > 5) options.strategy.name = argv[5];
    options.should_stop = [] { return std::filesystem::exists("enough"); };
    options.name = "run";
    options.program = "counting";
    weft::Trainer trainer(task, options, world);
    const auto result = trainer.run();
    if (result.left) return 0;
    const bool too_few = !result.stopped && result.epochs != options.epochs;
    torch::Tensor weight = model->weight.detach().clone();
    if (argc > 5) trainer.world().all_reduce(weight, weft::ReduceOp::kMin);
    const std::int64_t wrong = miscounted(weight, result.steps) + (too_few ? 1 : 0);
    if (trainer.world().rank() == 0)
      std::cout << (wrong == 0 ? "every sample was used once in each epoch, " : "miscounted, ")
                << result.steps << " steps\n";
    return wrong == 0 ? 0 : 1;
  } catch (const weft::Error& error) {
    std::cerr << "counting: " << error.what() << '\n';
    return weft::exit_code(error.code());
  }
}

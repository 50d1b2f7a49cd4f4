// Trains your own model on your own data set, with a run folder, metrics, checkpoints and
// evaluation, over any mesh.
//   own_model                              alone
//   weft run -n 2 own_model                data parallel
//   weft run -n 2 own_model fsdp=2         sharded; pp=2 takes its layers as stages of a pipeline
//   own_model dp=0 resume                  goes on with the newest run
#include <torch/torch.h>

#include <iostream>

#include "weft/weft.h"

namespace nn = torch::nn;

// Images of 28x28 in ten classes: a pattern for each class, under noise. Any dataset of torch::data
// will do, such as datasets::MNIST.
struct Images : torch::data::Dataset<Images> {
  explicit Images(int64_t count, uint64_t seed) : labels(torch::arange(count) % 10) {
    torch::manual_seed(0);
    const auto patterns = torch::randn({10, 1, 28, 28}).index_select(0, labels);
    torch::manual_seed(seed);
    pixels = patterns + torch::randn({count, 1, 28, 28});
  }
  torch::data::Example<> get(size_t i) override {
    return {pixels[static_cast<int64_t>(i)], labels[static_cast<int64_t>(i)]};
  }
  std::optional<size_t> size() const override { return labels.size(0); }
  torch::Tensor labels, pixels;
};

int main(int argc, char** argv) {
  try {
    const auto world = weft::init();

    // A Sequential is a list of blocks, which can be stages of a pipeline; any other module is one
    // block.
    torch::manual_seed(1);
    nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(1, 8, 3).padding(1)), nn::BatchNorm2d(8),
                       nn::ReLU(), nn::MaxPool2d(4), nn::Flatten(), nn::Linear(8 * 7 * 7, 64),
                       nn::ReLU(), nn::Linear(64, 10));
    weft::Task task(weft::blocks_of(net),
                    [](const torch::Tensor& output, const torch::Tensor& target) {
                      return nn::functional::cross_entropy(output, target);
                    });
    task.train = weft::train::dataset(Images(2048, 1));
    task.test = weft::train::dataset(Images(512, 2));
    task.metrics.push_back(
        {"accuracy", [](const torch::Tensor& output, const torch::Tensor& target) {
           return output.argmax(1).eq(target).to(torch::kDouble).mean();
         }});

    weft::train::Options options;
    options.epochs = 3;
    options.batch = 64;
    options.plan.optimizer = weft::optimizer_spec(torch::optim::SGDOptions(0.02).momentum(0.9), {});
    options.mesh = argc > 1 ? argv[1] : "dp=0";
    options.resume = argc > 2 && std::string(argv[2]) == "resume";
    options.program = "own_model";
    const auto result = weft::Trainer(task, options, world).run();

    if (world.rank() == 0) std::cout << 100 * result.accuracy << "% of the test images are right\n";
    return result.accuracy > 0.9 ? 0 : 1;
  } catch (const weft::Error& error) {
    std::cerr << "own_model: " << error.what() << '\n';
    return weft::exit_code(error.code());
  }
}

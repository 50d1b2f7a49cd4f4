// A libtorch program of the kind that everybody has: a small convolutional net and a loop over
// batches. mnist_before.cc is one process; mnist_after.cc trains on any number of them (weft run -n
// 2 mnist_after). diff shows what that takes.
#include <torch/torch.h>

#include <iostream>

#include "weft/weft.h"

namespace F = torch::nn::functional;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("conv", conv);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = F::max_pool2d(torch::relu(conv(x)), F::MaxPool2dFuncOptions(4));
    return fc2(torch::relu(fc1(x.flatten(1))));
  }
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(1, 8, 3).padding(1)};
  torch::nn::Linear fc1{8 * 7 * 7, 64}, fc2{64, 10};
};
TORCH_MODULE(Net);

// Images of 28x28 in ten classes: a pattern for each class, under noise.
struct Images {
  explicit Images(int64_t count) : labels(torch::arange(count) % 10) {
    pixels =
        torch::randn({10, 1, 28, 28}).index_select(0, labels) + torch::randn({count, 1, 28, 28});
  }
  torch::Tensor labels, pixels;
};

int main() {
  torch::manual_seed(1);
  const int64_t count = 2048, batch = 64;
  const Images train(count);
  auto model = weft::data_parallel(Net(), weft::init());
  auto optimizer = model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.01).momentum(0.9));
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (int64_t i = batch * model.group().rank(); i < count; i += batch * model.group().size()) {
      optimizer.zero_grad();
      auto loss = F::cross_entropy(model->forward(train.pixels.narrow(0, i, batch)),
                                   train.labels.narrow(0, i, batch));
      loss.backward();
      optimizer.step();
    }
  }
  torch::NoGradGuard no_grad;
  const auto right = model->forward(train.pixels).argmax(1).eq(train.labels).sum().item<int64_t>();
  std::cout << right << " of " << count << " images are right\n";
  return right > count * 9 / 10 ? 0 : 1;
}

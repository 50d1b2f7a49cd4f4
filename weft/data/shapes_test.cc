#include "weft/data/shapes.h"

#include <gtest/gtest.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "weft/data/loader.h"

namespace weft::data {
namespace {

TEST(Shapes, RepeatWithTheSeedAndDifferBetweenTheParts) {
  const ImageSet train = make_shapes({.train = 50, .test = 50, .seed = 2}, Part::kTrain);
  EXPECT_EQ(train.pixels, make_shapes({.train = 50, .seed = 2}, Part::kTrain).pixels);
  EXPECT_NE(train.pixels, make_shapes({.train = 50, .seed = 3}, Part::kTrain).pixels);
  EXPECT_NE(train.pixels, make_shapes({.test = 50, .seed = 2}, Part::kTest).pixels);
  for (int label = 0; label < 10; ++label)
    EXPECT_EQ(std::count(train.labels.begin(), train.labels.end(), label), 5);
}

// Loops over vectors give the pixels that a scalar program gave, with hypot() and remainder().
TEST(Shapes, HaveTheSamePixelsOnEveryProcessor) {
  std::uint64_t sum = 0;
  for (const std::uint8_t pixel : make_shapes({.train = 1000}, Part::kTrain).pixels)
    sum = 31 * sum + pixel;
  EXPECT_EQ(sum, 3060506744105573125u);
}

TEST(Shapes, AreNotSolvedByTheNearestClassMean) {
  const ImageSet train = make_shapes({.train = 2000, .test = 500}, Part::kTrain),
                 test = make_shapes({.test = 500}, Part::kTest);
  std::vector<double> means(10 * 784);
  for (std::int64_t i = 0; i < train.size(); ++i)
    for (int k = 0; k < 784; ++k)
      means[train.labels[i] * 784 + k] += train.pixels[i * 784 + k] / 200.0;
  int right = 0;
  for (std::int64_t i = 0; i < test.size(); ++i) {
    std::pair<double, int> best{1e300, -1};
    for (int label = 0; label < 10; ++label) {
      double d = 0;
      for (int k = 0; k < 784; ++k)
        d += std::pow(test.pixels[i * 784 + k] - means[label * 784 + k], 2);
      best = std::min(best, {d, label});
    }
    right += best.second == test.labels[i];
  }
  EXPECT_LT(right, 300);  // 60 %. Chance is 10 %.
  EXPECT_GT(right, 75);
}

TEST(ShapesSlow, ASmallConvolutionalNetLearnsThemToNinetyPercent) {
  namespace nn = torch::nn;
  torch::manual_seed(1);
  torch::set_num_threads(1);  // For so small a net, more threads are slower.
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(1, 8, 3).padding(1)), nn::ReLU(),
                     nn::MaxPool2d(2), nn::Conv2d(nn::Conv2dOptions(8, 16, 3).padding(1)),
                     nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(), nn::Linear(16 * 49, 64),
                     nn::ReLU(), nn::Linear(64, 10));
  torch::optim::Adam optimizer(net->parameters(), 2e-3);
  const auto load = [](Part part, Order order) {
    const auto set =
        std::make_shared<const ImageSet>(make_shapes({.train = 5000, .test = 1000}, part));
    return std::make_unique<Loader>(image_source(set, Augment({.mean = {0.3f}, .std = {0.2f}})),
                                    Sampler({.size = set->size(), .batch = 50, .order = order}), 0);
  };
  const auto deadline = Deadline::in(std::chrono::seconds(100));
  const auto train = load(Part::kTrain, Order::kShuffled),
             test = load(Part::kTest, Order::kSequential);
  for (int epoch = 0; epoch < 4; ++epoch) {
    while (const auto batch = train->next(deadline)) {
      optimizer.zero_grad();
      nn::functional::cross_entropy(net->forward(batch->inputs[0]), batch->targets[0]).backward();
      optimizer.step();
    }
  }
  const torch::NoGradGuard no_grad;
  std::int64_t right = 0;
  while (const auto batch = test->next(deadline)) {
    right +=
        net->forward(batch->inputs[0]).argmax(1).eq(batch->targets[0]).sum().item<std::int64_t>();
  }
  EXPECT_GT(right, 900) << "of 1000";
}

}  // namespace
}  // namespace weft::data

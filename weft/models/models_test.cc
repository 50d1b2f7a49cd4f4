// reference.py prints the known answers: PyTorch's results for the same nets, filled by the same
// formula. Both compute in float64.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>

#include "weft/base/error.h"
#include "weft/base/testing/refusal.h"
#include "weft/comm/replicate.h"
#include "weft/comm/testing/tensors.h"
#include "weft/models/cnn.h"
#include "weft/models/loss.h"
#include "weft/models/mlp.h"
#include "weft/models/registry.h"
#include "weft/models/vision/resnet.h"

namespace weft::models {
namespace models_test {

using comm::wave;
using ::testing::HasSubstr;

constexpr double kTolerance = 1e-7;  // Relative. The known values have nine digits.

void fill(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  int i = 0;
  for (const auto& pair : module.named_parameters()) {
    at::Tensor p = pair.value();
    if (p.dim() > 1) {
      p.copy_(wave(p.sizes(), i) / std::sqrt(static_cast<double>(p[0].numel())));
    } else {
      p.copy_(wave(p.sizes(), i) / 10 + (pair.key().ends_with("weight") ? 1 : 0));
    }
    ++i;
  }
}

struct Known {
  std::int64_t parameters;
  std::vector<double> logits;  // Logits of the first sample.
  double loss, gradient_norm, first_gradient;
};

void expect_near(double got, double want) {
  EXPECT_NEAR(got, want, kTolerance * std::max(1.0, std::abs(want)));
}

void expect_near(const at::Tensor& got, const std::vector<double>& want) {
  ASSERT_EQ(got.numel(), static_cast<std::int64_t>(want.size()));
  for (std::size_t i = 0; i < want.size(); ++i)
    expect_near(got[static_cast<std::int64_t>(i)].item<double>(), want[i]);
}

void expect_known(const ModelOptions& options, const Known& known) {
  const Model model = make_model(options);
  model.module->to(torch::kDouble);
  fill(*model.module);
  const at::Tensor out = model.forward(wave({4, 1, 28, 28}, 0.5));
  const at::Tensor value =
      loss(out, torch::tensor({1, 3, 5, 9}, torch::kLong), {.label_smoothing = 0.1});
  value.backward();
  std::int64_t count = 0;
  double squares = 0;
  for (const at::Tensor& p : model.module->parameters()) {
    count += p.numel();
    squares += p.grad().square().sum().item<double>();
  }
  EXPECT_EQ(count, known.parameters);
  expect_near(out[0], known.logits);
  expect_near(value.item<double>(), known.loss);
  expect_near(std::sqrt(squares), known.gradient_norm);
  expect_near(model.module->parameters().front().grad().abs().sum().item<double>(),
              known.first_gradient);
}

TEST(Models, MlpComputesAndDifferentiatesAsInPyTorch) {
  expect_known({.name = "mlp"},
               {235146,
                {-0.00992244078, -0.325084087, -0.0394482675, 0.349511333, 0.115238616,
                 -0.198752273, 0.0428801384, 0.230188483, -0.148500775, -0.364083955},
                2.42908268,
                31.4653068,
                145.735743});
}

TEST(Models, CnnComputesAndDifferentiatesAsInPyTorch) {
  expect_known({.name = "cnn"},
               {421642,
                {0.216564668, -0.141829289, -0.0343317587, 0.288024508, 0.0500719402, -0.355282284,
                 -0.15011984, 0.21223979, 0.0201761549, -0.209267678},
                2.40600254,
                37.2915412,
                0.0906712719});
}

TEST(ModelsSlow, ResNet18WithThe7x7StemComputesAndDifferentiatesAsInPyTorch) {
  expect_known({.name = "resnet18"},
               {11175370,
                {1.1874314, 0.510272453, -0.164217521, -0.810895056, -1.41441477, -1.95726493,
                 -2.41031389, -2.73148857, -2.87420423, -2.8023353},
                2.33702649,
                364.070558,
                2319.69101});
}

TEST(ModelsSlow, ResNet18WithThe3x3StemComputesAndDifferentiatesAsInPyTorch) {
  expect_known({.name = "resnet18", .stem = "3x3"},
               {11172810,
                {0.26252434, 0.0290557027, -0.169782014, -0.340437702, -0.499182892, -0.658047329,
                 -0.813403328, -0.942950285, -1.01283119, -0.991758074},
                2.44856113,
                7.95025452,
                6.61170412});
}

// The names are those of torchvision's resnet18().state_dict(). The count is from its documentation
// (11,689,512 for 3 channels and 1000 classes).
TEST(ModelsSlow, ResNet18HasTorchvisionsNamesSizesAndInitialization) {
  torch::manual_seed(3);
  ResNet net;
  std::int64_t count = 0;
  for (const auto& p : net->parameters()) count += p.numel();
  EXPECT_EQ(count, 11'689'512);
  const auto parameters = net->named_parameters();
  EXPECT_EQ(parameters.size(), 62u);
  EXPECT_EQ(net->named_buffers().size(), 60u);
  for (const char* name :
       {"conv1.weight", "bn1.bias", "layer1.0.conv1.weight", "layer2.0.downsample.0.weight",
        "layer2.0.downsample.1.bias", "layer4.1.bn2.weight", "fc.bias"}) {
    EXPECT_NE(parameters.find(name), nullptr) << name;
  }
  EXPECT_NE(net->named_buffers().find("layer3.0.bn1.running_var"), nullptr);
  // Kaiming normal over fan-out: variance 2 / (out · k · k).
  const at::Tensor weight = *parameters.find("layer4.1.conv2.weight");
  EXPECT_NEAR(weight.std().item<double>(), std::sqrt(2.0 / (512 * 9)), 1e-4);
  EXPECT_NEAR(weight.mean().item<double>(), 0, 1e-4);
  EXPECT_TRUE(parameters.find("layer4.1.bn2.weight")->eq(1).all().item<bool>());
  EXPECT_EQ(net->forward(torch::randn({1, 3, 224, 224})).sizes(),
            (std::vector<std::int64_t>{1, 1000}));
}

void expect_clone(const std::string& name) {
  const Model model = make_model({.name = name});
  const auto copy = model.module->clone();
  const auto ours = model.module->parameters(), theirs = copy->parameters();
  ASSERT_EQ(ours.size(), theirs.size()) << name;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(torch::equal(ours[i], theirs[i])) << name;
    EXPECT_NE(ours[i].data_ptr(), theirs[i].data_ptr()) << name;
  }
}

TEST(Models, CloneIntoIndependentNets) {
  for (const char* name : {"mlp", "cnn", "resnet18", "vit", "mixer"}) expect_clone(name);
}

TEST(ModelsSlow, DeeperResNetsCloneIntoIndependentNets) {
  for (const char* name : {"resnet34", "resnet50"}) expect_clone(name);
}

TEST(Models, HaveBlocksInOrder) {
  const auto count = [](const ModelOptions& options) {
    return image_blocks(options).blocks.size();
  };
  EXPECT_EQ(count({.name = "mlp"}), 3u);
  EXPECT_EQ(count({.name = "cnn"}), 4u);
  EXPECT_EQ(count({.name = "resnet18"}), 10u);
  EXPECT_EQ(count({.name = "resnet34"}), 18u);
  EXPECT_EQ(count({.name = "resnet50"}), 18u);
  EXPECT_EQ(count({.name = "resnet101"}), 35u);
  EXPECT_EQ(count({.name = "resnet152"}), 52u);
  EXPECT_EQ(count({.name = "vit", .layers = 3}), 5u);
  EXPECT_EQ(count({.name = "mixer", .layers = 30}), 32u);
}

// Blocks with the whole net's parameter values give the whole net's output.
TEST(Models, ComputeTheSameAsBlocks) {
  const torch::NoGradGuard no_grad;
  for (const char* name : {"mlp", "cnn", "resnet18", "vit", "mixer"}) {
    const ModelOptions options{.name = name,
                               .in_channels = 3,
                               .image_size = 16,
                               .num_classes = 7,
                               .layers = 2,
                               .width = 8};
    const Model whole = make_model(options);
    const auto values = whole.module->named_parameters();
    engine::Tensors x{wave({2, 3, 16, 16}, 1).to(torch::kFloat)};
    const at::Tensor want = whole.forward(x[0]);
    std::size_t named = 0;
    for (const parallel::BlockSpec& spec : image_blocks(options).blocks) {
      const engine::Block block = spec.make({});
      const std::string prefix = block.prefix.value_or(spec.name);
      for (const auto& item : block.module->named_parameters()) {
        item.value().copy_(values[prefix.empty() ? item.key() : prefix + "." + item.key()]);
        ++named;
      }
      x = block.forward(x);
    }
    EXPECT_EQ(named, values.size()) << name;
    EXPECT_TRUE(torch::equal(x[0], want)) << name;
  }
}

TEST(Models, SupportOtherChannelsSizesClassesAndWidths) {
  for (const char* name : {"mlp", "cnn", "resnet18", "vit", "mixer"}) {
    const Model model = make_model({.name = name,
                                    .in_channels = 3,
                                    .image_size = 32,
                                    .num_classes = 7,
                                    .hidden = {9},
                                    .stem = "3x3"});
    EXPECT_EQ(model.forward(torch::zeros({2, 3, 32, 32})).sizes(),
              (std::vector<std::int64_t>{2, 7}))
        << name;
  }
}

TEST(Models, TakeImagesThatAreNotSquare) {
  const torch::NoGradGuard no_grad;
  for (const char* name : {"mlp", "cnn", "resnet18", "vit", "mixer"}) {
    const ModelOptions options{.name = name, .image_size = 20, .image_width = 32};
    const at::Tensor images = wave({2, 1, 20, 32}, 1).to(torch::kFloat);
    EXPECT_EQ(make_model(options).forward(images).sizes(), (std::vector<std::int64_t>{2, 10}))
        << name;
    engine::Tensors x{images};
    for (const parallel::BlockSpec& spec : image_blocks(options).blocks)
      x = spec.make({}).forward(x);
    EXPECT_EQ(x[0].sizes(), (std::vector<std::int64_t>{2, 10})) << name;
  }
}

TEST(Models, SuggestTheNearestNameForAnUnknownOne) {
  const auto refusal = [](const ModelOptions& options) -> std::string {
    try {
      make_model(options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kBadConfig);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal({.name = "resnet81"}), HasSubstr("did you mean \"resnet18\""));
  EXPECT_THAT(refusal({.name = "transmogrifier"}), HasSubstr("There are mlp, cnn, resnet18"));
  EXPECT_THAT(refusal({.name = "resnet18", .stem = "5x5"}), HasSubstr("model.stem"));
  EXPECT_THAT(refusal({.name = "cnn", .image_size = 3}), HasSubstr("4x4"));
  EXPECT_THAT(refusal({.name = "cnn", .image_size = 20, .image_width = 3}), HasSubstr("20x3"));
  EXPECT_THAT(refusal({.name = "vit", .image_size = 20, .patch = 4, .image_width = 30}),
              HasSubstr("model.patch: 4 does not divide images of 20x30"));
  EXPECT_THAT(refusal({.name = "mlp", .hidden = {0}}), HasSubstr("at least 1"));
  EXPECT_THAT(refusal({.name = "resnet51"}), HasSubstr("did you mean \"resnet50\""));
  EXPECT_THAT(refusal({.name = "vit", .patch = 5}),
              HasSubstr("model.patch: 5 does not divide images of 28x28"));
  EXPECT_THAT(refusal({.name = "mixer", .patch = 0}), HasSubstr("model.patch"));
  EXPECT_THAT(refusal({.name = "mixer", .width = 0}), HasSubstr("model.width"));
  EXPECT_THAT(refusal({.name = "vit", .width = 100, .heads = 3}),
              HasSubstr("model.heads: 3 do not divide a width of 100"));
  EXPECT_THAT(refusal({.name = "vit", .pool = "max"}), HasSubstr("model.pool"));
  EXPECT_THAT(refusal({.name = "vit", .dropout = 1}), HasSubstr("model.dropout"));
}

void expect_loss(const LossOptions& options, double value, const std::vector<double>& gradient) {
  const at::Tensor x = wave({3, 5}, 1).requires_grad_(),
                   target = torch::tensor({4, 0, 2}, torch::kLong);
  const at::Tensor mean = loss(x, target, options);
  expect_near(mean.item<double>(), value);
  mean.backward();
  expect_near(x.grad()[0], gradient);
  expect_near(loss(x, target, options, Reduction::kSum).item<double>(), 3 * value);
}

TEST(ModelsSlow, ResNet18WithSynchronousBatchNormsHasTheJoinedBatchsLogits) {
  const at::Tensor x = wave({5, 1, 28, 28}, 1.5);
  const ModelOptions options{.name = "resnet18"};
  const auto make = [&] {
    Model model = make_model(options);
    model.module->to(torch::kDouble);
    fill(*model.module);
    return model;
  };
  const torch::NoGradGuard no_grad;
  const at::Tensor joined = make().forward(x);
  replicate(2, [&](Group group) {
    const torch::NoGradGuard no_grad_here;
    const Model model = make();
    EXPECT_EQ(parallel::convert_sync_batch_norm(model.module, group), 20);
    const int64_t first = group.rank() == 0 ? 0 : 2, samples = group.rank() == 0 ? 2 : 3;
    EXPECT_TRUE(torch::allclose(model.forward(x.narrow(0, first, samples)),
                                joined.narrow(0, first, samples), 1e-9, 1e-9));
  });
}

TEST(Loss, GivesPyTorchsValuesAndGradients) {
  expect_loss({LossKind::kMse}, 0.941407311458,
              {0.112196131, 0.132221975, 0.0900617574, 0.00554408832, -0.214914385});
  expect_loss({LossKind::kNll}, 0.521537527718, {0, 0, 0, 0, -0.333333333});
  expect_loss({LossKind::kCrossEntropy}, 2.41322471021,
              {0.0902787468, 0.104909272, 0.0764696757, 0.0405693051, -0.312226999});
  expect_loss({LossKind::kCrossEntropy, 0.1}, 2.35482739533,
              {0.0836120801, 0.0982426049, 0.069803009, 0.0339026384, -0.285560332});
}

TEST(Loss, IsZeroWithAGradientOfZerosForARankWithoutSamples) {
  for (const char* name : {"mse", "nll", "cross_entropy"}) {
    const at::Tensor x = torch::empty({0, 5}).requires_grad_();
    const at::Tensor weight = torch::ones({5}).requires_grad_();
    const at::Tensor value =
        loss(x * weight, torch::empty({0}, torch::kLong), {parse_loss(name)}, Reduction::kSum);
    EXPECT_EQ(value.item<float>(), 0) << name;
    value.backward();
    EXPECT_TRUE(torch::equal(weight.grad(), torch::zeros({5}))) << name;
    EXPECT_THROW(loss(x, torch::empty({0}, torch::kLong), {parse_loss(name)}), Error);
  }
}

TEST(Loss, RefusesInvalidArguments) {
  const at::Tensor x = torch::zeros({3, 5}), y = torch::zeros({3}, torch::kLong);
  EXPECT_THROW(parse_loss("hinge"), Error);
  EXPECT_THROW(loss(x, torch::zeros({2}, torch::kLong), {}), Error);
  EXPECT_THROW(loss(x, y, {.label_smoothing = 1}), Error);
  EXPECT_THROW(loss(x, y, {LossKind::kNll, 0.1}), Error);
  EXPECT_THROW(loss(x, torch::zeros({3, 4}), {LossKind::kMse}), Error);
}

TEST(Loss, RefusesTargetsThatTorchIgnores) {
  const at::Tensor x = torch::zeros({3, 5});
  for (const LossKind kind : {LossKind::kNll, LossKind::kCrossEntropy}) {
    for (const auto reduction : {Reduction::kMean, Reduction::kSum}) {
      EXPECT_THAT(refusal([&] {
                    loss(x, torch::tensor({1, -100, 2}), {kind}, reduction);
                  }),
                  HasSubstr("target -100 is negative"));
    }
  }
}

}  // namespace models_test
}  // namespace weft::models

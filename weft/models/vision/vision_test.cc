// reference.py prints the known answers: PyTorch's results for the same nets of plain modules,
// filled by the same formula. Both compute in float64. Counts are torchvision's and timm's.
// Tolerance over ranks and in pipelines: 1e-10 relative and absolute in float64.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "weft/base/testing/refusal.h"
#include "weft/comm/replicate.h"
#include "weft/models/vision/mixer.h"
#include "weft/models/vision/resnet.h"
#include "weft/models/vision/vit.h"
#include "weft/parallel/pipeline/pipeline.h"

namespace weft::models {
namespace {

using parallel::TensorParallel;
using testing::HasSubstr;

at::Tensor chirp(at::IntArrayRef shape, double phase) {
  const at::Tensor k = torch::arange(c10::multiply_integers(shape), torch::kDouble);
  return torch::sin(k.remainder(997).square() * 0.7 + k * 0.01 + phase).reshape(shape);
}

std::map<std::string, at::Tensor> by_name(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> all;
  for (const auto& pair : module.named_parameters()) all[pair.key()] = pair.value();
  return all;
}

void fill(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  module.to(torch::kDouble);
  int i = 0;
  for (auto& [name, p] : by_name(module)) {
    const at::Tensor values = chirp(p.sizes(), i++);
    p.copy_(p.dim() > 1 ? values / std::sqrt(static_cast<double>(p[0].numel()))
                        : values / 10 + (name.ends_with("weight") ? 1 : 0));
  }
}

at::Tensor images(std::int64_t size = 28) { return chirp({4, 1, size, size}, 0.5); }
at::Tensor labels() { return torch::tensor({1, 3, 5, 9}, torch::kLong); }

std::int64_t count_of(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const at::Tensor& p : module.parameters()) count += p.numel();
  return count;
}

struct Known {
  std::int64_t parameters;
  std::vector<double> logits;  // Logits of the first image.
  double loss, gradient_norm, first_gradient;
  double tolerance = 1e-7;  // Relative. The known values have nine digits.
};

template <class Net>
void expect_known(Net net, const Known& known, std::int64_t size = 28) {
  fill(*net);
  const auto expect_near = [&](double got, double want) {
    EXPECT_NEAR(got, want, known.tolerance * std::max(1.0, std::abs(want)));
  };
  const at::Tensor out = net->forward(images(size));
  const at::Tensor loss = torch::cross_entropy_loss(out, labels());
  loss.backward();
  EXPECT_EQ(count_of(*net), known.parameters);
  ASSERT_EQ(out.size(1), static_cast<std::int64_t>(known.logits.size()));
  for (std::size_t i = 0; i < known.logits.size(); ++i)
    expect_near(out[0][static_cast<std::int64_t>(i)].item<double>(), known.logits[i]);
  expect_near(loss.item<double>(), known.loss);
  double squares = 0;
  for (const at::Tensor& p : net->parameters())
    squares += p.grad().square().sum().template item<double>();
  expect_near(std::sqrt(squares), known.gradient_norm);
  expect_near(by_name(*net).begin()->second.grad().abs().sum().template item<double>(),
              known.first_gradient);
}

VitOptions small_vit(VitPool pool = VitPool::kToken) {
  VitOptions o{.image_size = 28,
               .patch = 7,
               .in_channels = 1,
               .num_classes = 10,
               .layers = 2,
               .width = 24,
               .heads = 4};
  o.pool = pool;
  return o;
}
MixerOptions small_mixer() {
  return {
      .image_size = 28, .patch = 7, .in_channels = 1, .num_classes = 10, .layers = 3, .width = 24};
}

TEST(VisionSlow, ResNet34ComputesAndDifferentiatesAsInPyTorch) {
  expect_known(ResNet(ResNetOptions{.depth = 34, .in_channels = 1, .num_classes = 10}),
               {21283530,
                {-2.07209148, 1.8206895, 0.299982486, -0.863540945, 0.08379414, -0.165272932,
                 -0.586559773, 0.879761521, 0.45388625, -1.89926386},
                3.38816396,
                143.015557,
                4.34424864},
               64);
}

TEST(VisionSlow, ResNet50ComputesAndDifferentiatesAsInPyTorch) {
  expect_known(ResNet(ResNetOptions{.depth = 50, .in_channels = 1, .num_classes = 10}),
               {23522250,
                {2.28556029, 0.413073936, 0.0744334188, 0.0463097236, 0.246562837, 0.486031195,
                 0.830357659, 0.33713367, -0.303310777, -0.441794603},
                3.3847713,
                1855.48519,
                15.1977821},
               64);
}

TEST(Vision, AVisionTransformerWithAClassTokenComputesAndDifferentiatesAsInPyTorch) {
  expect_known(Vit(small_vit()),
               {16378,
                {0.774767685, -0.890974551, 0.404068838, -0.312667216, -1.25455409, -0.573115785,
                 0.402298805, -1.55311657, -0.347963295, 1.70868222},
                2.49004906,
                8.19716978,
                1.01824833});
}

TEST(Vision, AVisionTransformerThatTakesTheMeanComputesAndDifferentiatesAsInPyTorch) {
  VitOptions o = small_vit(VitPool::kMean);
  o.patch = 4;
  o.heads = 3;
  expect_known(Vit(o), {16330,
                        {0.168540686, 0.335535833, -0.218623867, -0.0508867483, 0.537349489,
                         -0.292408065, 0.242936409, -0.23518294, -0.0917746215, 0.177751392},
                        2.32766071,
                        2.48248,
                        1.21713131});
}

TEST(Vision, AMixerComputesAndDifferentiatesAsInPyTorch) {
  expect_known(Mixer(small_mixer()),
               {17206,
                {-0.197391298, 0.0256454294, -0.361700475, 0.201870816, -0.162469777, 0.571845575,
                 0.394419896, 0.0525734258, -0.394798476, -0.153265116},
                2.37430808,
                2.1042253,
                0.872177414});
}

// Makes only the first, the second and the last block, and counts the second once for each layer.
std::int64_t count_of(const parallel::BlockModel& model) {
  const auto count = [&](std::size_t i) { return count_of(*model.blocks[i].make({}).module); };
  return count(0) + count(1) * static_cast<std::int64_t>(model.blocks.size() - 2) +
         count(model.blocks.size() - 1);
}

// Returns the name in the whole net of a block's parameter.
std::string whole_name(const engine::Block& block, const std::string& name) {
  const std::string prefix = block.prefix.value_or(block.name);
  return prefix.empty() ? name : prefix + "." + name;
}

engine::Block made(const parallel::BlockSpec& spec) {
  engine::Block block = spec.make({});
  block.name = spec.name;
  return block;
}

TEST(Vision, TransformersAndMixersHaveThePublishedNumbersOfParameters) {
  EXPECT_EQ(count_of(vit_blocks({})), 86'567'656);
  EXPECT_EQ(count_of(mixer_blocks({.layers = 8, .width = 512})), 18'528'264);
  EXPECT_EQ(count_of(mixer_blocks({})), 59'880'472);
}

// The numbers of parameters and of their names are those of torchvision's resnet34() …
// resnet152().
TEST(VisionSlow, DeeperResNetsHaveTorchvisionsNamesAndNumbersOfParameters) {
  const std::tuple<std::int64_t, std::int64_t, std::size_t, const char*> known[] = {
      {34, 21'797'672, 110, "layer3.5.conv2.weight"},
      {50, 25'557'032, 161, "layer4.0.downsample.1.bias"},
      {101, 44'549'160, 314, "layer3.22.conv3.weight"},
      {152, 60'192'808, 467, "layer2.7.bn3.weight"},
  };
  for (const auto& [depth, count, names, one] : known) {
    std::int64_t elements = 0;
    std::set<std::string> seen;
    for (const auto& spec : resnet_blocks({.depth = depth}).blocks) {
      const engine::Block block = made(spec);
      elements += count_of(*block.module);
      for (const auto& [name, p] : by_name(*block.module)) seen.insert(whole_name(block, name));
    }
    EXPECT_EQ(elements, count) << depth;
    EXPECT_EQ(seen.size(), names) << depth;
    EXPECT_TRUE(seen.contains(one)) << depth;
  }
}

// Copies the whole net's values into one of its blocks.
void copy_into(const engine::Block& block, const std::map<std::string, at::Tensor>& values) {
  const torch::NoGradGuard no_grad;
  block.module->to(torch::kDouble);
  for (auto& [name, p] : by_name(*block.module)) p.copy_(values.at(whole_name(block, name)));
}

// The net's own parts give its output. So do the blocks of `model` with the net's values.
template <class Net>
void expect_parts(Net net, const parallel::BlockModel& model) {
  fill(*net);
  const auto values = by_name(*net);
  const at::Tensor want = net->forward(images());
  engine::Tensors x{images()}, y = x;
  std::set<std::string> names;
  const auto own = net->parts();
  ASSERT_EQ(own.size(), model.blocks.size());
  for (std::size_t i = 0; i < own.size(); ++i) {
    const engine::Block& mine = own[i];
    const engine::Block block = made(model.blocks[i]);
    EXPECT_EQ(block.name, mine.name);
    for (const auto& [name, p] : by_name(*mine.module)) {
      EXPECT_TRUE(p.is_same(values.at(whole_name(mine, name)))) << name;
      names.insert(whole_name(mine, name));
    }
    copy_into(block, values);
    x = mine.forward(x);
    y = block.forward(y);
  }
  EXPECT_TRUE(torch::equal(x[0], want));
  EXPECT_TRUE(torch::equal(y[0], want));
  EXPECT_EQ(names.size(), values.size());
}

TEST(Vision, PartsInOrderEqualTheWholeNet) {
  expect_parts(Vit(small_vit()), vit_blocks(small_vit()));
  expect_parts(Vit(small_vit(VitPool::kMean)), vit_blocks(small_vit(VitPool::kMean)));
  expect_parts(Mixer(small_mixer()), mixer_blocks(small_mixer()));
}

TEST(VisionSlow, PartsOfResNetsInOrderEqualTheWholeNet) {
  for (const std::int64_t depth : {18, 50}) {
    const ResNetOptions options{.depth = depth, .in_channels = 1, .num_classes = 10};
    expect_parts(ResNet(options), resnet_blocks(options));
  }
}

TEST(Vision, ClonesAndTheirPartsAreIndependent) {
  const Vit net(small_vit());
  const auto copy = std::dynamic_pointer_cast<VitImpl>(net->clone());
  EXPECT_TRUE(torch::equal(copy->forward(images().to(torch::kFloat)),
                           net.ptr()->forward(images().to(torch::kFloat))));
  const auto parts = copy->parts();
  const auto values = by_name(*copy);
  for (const engine::Block& part : parts) {
    for (const auto& [name, p] : by_name(*part.module))
      EXPECT_TRUE(p.is_same(values.at(whole_name(part, name)))) << name;
  }
}

// The split net starts with bitwise the whole net's values. Its logits and gradients equal the
// whole net's.
template <class Net>
void expect_split_parity(const std::function<Net(const TensorParallel&)>& make) {
  torch::manual_seed(3);
  Net whole = make({});
  whole->to(torch::kDouble);
  const at::Tensor want = whole->forward(images());
  torch::cross_entropy_loss(want, labels()).backward();
  const auto values = by_name(*whole);
  replicate(2, [&](const Group& group) {
    const TensorParallel tp(group, 3);
    Net net = make(tp);
    net->to(torch::kDouble);
    const auto slices = parallel::slices(*net);
    EXPECT_FALSE(slices.empty());
    const auto part_of_whole = [&](const std::string& name, const at::Tensor& tensor) {
      const auto slice = slices.find(name);
      return slice == slices.end() ? tensor : parallel::slice_of(tensor, slice->second, tp);
    };
    const auto mine = by_name(*net);
    EXPECT_EQ(mine.size(), values.size());
    for (const auto& [name, p] : mine)
      EXPECT_TRUE(torch::equal(p, part_of_whole(name, values.at(name).detach()))) << name;
    const at::Tensor got = net->forward(images());
    EXPECT_TRUE(torch::allclose(got, want, 1e-10, 1e-10));
    torch::cross_entropy_loss(got, labels()).backward();
    for (const auto& [name, p] : mine) {
      EXPECT_TRUE(
          torch::allclose(p.grad(), part_of_whole(name, values.at(name).grad()), 1e-10, 1e-10))
          << name;
    }
  });
}

TEST(Vision, SplitOverTwoRanksEqualsOne) {
  expect_split_parity<Vit>([](const TensorParallel& tp) { return Vit(small_vit(), tp); });
  expect_split_parity<Mixer>([](const TensorParallel& tp) { return Mixer(small_mixer(), tp); });
}

TEST(Vision, AMixerInAPipelineEqualsOneProcess) {
  Mixer whole(small_mixer());
  fill(*whole);
  const at::Tensor loss = torch::cross_entropy_loss(whole->forward(images()), labels());
  loss.backward();
  const auto values = by_name(*whole);
  replicate(2, [&](const Group& group) {
    const auto mixer = mixer_blocks(small_mixer());
    std::map<int, engine::Block> blocks;
    const auto make = [&](int i) {
      const engine::Block block = made(mixer.blocks[static_cast<std::size_t>(i)]);
      copy_into(block, values);
      return blocks[i] = block;
    };
    const auto cross_entropy = [](const engine::Tensors& y, const engine::Tensors& t) {
      return torch::cross_entropy_loss(y[0], t[0]);
    };
    parallel::Pipeline model(group, static_cast<int>(mixer.blocks.size()), make,
                             {.micro_batches = 2, .loss = cross_entropy});
    EXPECT_NEAR(model.train_step({images()}, {labels()}), loss.item<double>(), 1e-10);
    const auto mine = model.named_parameters();
    EXPECT_FALSE(mine.empty());
    for (const auto& [name, p] : mine) {
      const auto dot = name.find('.');
      const std::string full =
          whole_name(blocks.at(std::stoi(name.substr(0, dot))), name.substr(dot + 1));
      EXPECT_TRUE(torch::allclose(p.grad(), values.at(full).grad(), 1e-10, 1e-10)) << full;
    }
  });
}

TEST(Vision, RefusesInvalidOptions) {
  EXPECT_THAT(refusal([] { ResNet(ResNetOptions{.depth = 20}); }),
              HasSubstr("18, 34, 50, 101 or 152, not 20"));
  EXPECT_THAT(refusal([] { resnet_blocks({.depth = 20}); }), HasSubstr("not 20"));
  EXPECT_THAT(refusal([] { Vit(VitOptions{.image_size = 28, .patch = 5}); }),
              HasSubstr("these do: 1, 2, 4, 7, 14, 28"));
  EXPECT_THAT(refusal([] { Vit(VitOptions{.width = 100, .heads = 3}); }),
              HasSubstr("a width of 100 does not divide by 3 heads"));
  EXPECT_THAT(refusal([] { Vit(VitOptions{.dropout = 1}); }), HasSubstr("dropout"));
  EXPECT_THAT(refusal([] { Mixer(MixerOptions{.image_size = 0}); }), HasSubstr("at least 1"));
  EXPECT_THAT(refusal([] { Mixer(MixerOptions{.layers = 0}); }), HasSubstr("at least 1"));
  EXPECT_THAT(refusal([] {
                Mixer(small_mixer())->forward(torch::zeros({1, 1, 32, 32}));
              }),
              HasSubstr("[n, channels, 28, 28]"));
}

}  // namespace
}  // namespace weft::models

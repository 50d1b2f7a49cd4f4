#include "weft/elastic/state.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "weft/base/testing/refusal.h"
#include "weft/checkpoint/packed.h"
#include "weft/comm/replicate.h"
#include "weft/engine/data_parallel.h"

namespace weft::elastic {
namespace {

namespace nn = torch::nn;

// The state that `ranks` ranks save, as any rank reads it.
checkpoint::Reader saved_by(const State& state, int ranks) {
  std::vector<checkpoint::Reader::Packed> blocks;
  std::vector<at::Tensor> packed(static_cast<std::size_t>(ranks));
  replicate(ranks, [&](const Group& world) {
    const checkpoint::Shards shards = state.shards(world, 3);
    const checkpoint::PackedLayout layout(shards);
    at::Tensor block = at::empty({layout.bytes()}, at::kByte);
    layout.copy_to(block);
    packed[static_cast<std::size_t>(world.rank())] = block;
  });
  for (const at::Tensor& block : packed) blocks.push_back({block});
  return checkpoint::Reader::of_packed(blocks);
}

void load_alone(State& state, const checkpoint::Reader& reader) {
  replicate(1, [&](const Group& world) { state.load(world, reader); });
}

nn::Sequential network() { return nn::Sequential(nn::Linear(3, 4), nn::BatchNorm1d(4)); }

void train(nn::Sequential& net, torch::optim::Optimizer& optimizer) {
  net->forward(torch::arange(15, torch::kFloat).view({5, 3})).square().sum().backward();
  optimizer.step();
  optimizer.zero_grad();
}

enum class Phase { kWarmup, kMain };

TEST(State, GivesBackAModuleAndSimpleValues) {
  auto net = network();
  net->forward(torch::randn({5, 3}));  // running statistics
  std::int64_t step = 12;
  double loss = 0.1;
  bool warm = true;
  Phase phase = Phase::kMain;
  std::string note = "first\nsecond";
  at::Tensor mean = torch::randn({2, 2});
  State state;
  state.add("net", net);
  state.add("step", step);
  state.add("loss", loss);
  state.add("warm", warm);
  state.add("phase", phase);
  state.add("note", note);
  state.add("mean", mean);
  const auto reader = saved_by(state, 3);
  const auto weight = net->parameters()[0].clone(), running = net->buffers()[0].clone(),
             was = mean.clone();
  {
    const torch::NoGradGuard no_grad;
    for (auto& tensor : net->parameters()) tensor.zero_();
    for (auto& tensor : net->buffers()) tensor.zero_();
    mean.zero_();
  }
  step = 0;
  loss = 0;
  warm = false;
  phase = Phase::kWarmup;
  note.clear();
  load_alone(state, reader);
  EXPECT_TRUE(torch::equal(net->parameters()[0], weight));
  EXPECT_TRUE(torch::equal(net->buffers()[0], running));
  EXPECT_TRUE(torch::equal(mean, was));
  EXPECT_EQ(step, 12);
  EXPECT_EQ(loss, 0.1);
  EXPECT_TRUE(warm);
  EXPECT_EQ(phase, Phase::kMain);
  EXPECT_EQ(note, "first\nsecond");
}

TEST(State, HasFractionsThatAreShownInDecimalAndNamesThatStay) {
  EXPECT_EQ(in_decimal(text_of(0.1)), "0.1");
  EXPECT_EQ(in_decimal(text_of(3.0)), "3");
  EXPECT_EQ(in_decimal(text_of(-2e-300)), "-2e-300");
  for (const char* text : {"ap50", "perplexity", "p", "16", ""}) EXPECT_EQ(in_decimal(text), text);
}

// Two more steps after a load give the same weights as without it: the optimizer's state is whole.
void expect_continues(
    const std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<at::Tensor>&)>&
        make) {
  torch::manual_seed(4);
  auto net = network();
  const auto optimizer = make(net->parameters());
  State state;
  state.add("net", net);
  state.add("optimizer", *optimizer);
  const auto fresh = saved_by(state, 2);
  for (int i = 0; i < 3; ++i) train(net, *optimizer);
  optimizer->param_groups()[0].options().set_lr(0.05);
  const auto reader = saved_by(state, 2);
  for (int i = 0; i < 2; ++i) train(net, *optimizer);
  const auto wanted = net->parameters()[0].clone();

  load_alone(state, fresh);  // from before the first step, which made the optimizer's state
  EXPECT_NE(optimizer->param_groups()[0].options().get_lr(), 0.05);
  train(net, *optimizer);
  load_alone(state, reader);
  for (int i = 0; i < 2; ++i) train(net, *optimizer);
  EXPECT_TRUE(torch::equal(net->parameters()[0], wanted));
}

template <class Optimizer, class Options>
void expect_continues_with(const Options& options) {
  expect_continues([&](const std::vector<at::Tensor>& params) {
    return std::make_unique<Optimizer>(params, options);
  });
}

TEST(State, GivesBackTheOptimizersOfTorch) {
  using namespace torch::optim;
  expect_continues_with<SGD>(SGDOptions(0.1).momentum(0.9));
  expect_continues_with<Adam>(AdamOptions(0.1).amsgrad(true));
  expect_continues_with<AdamW>(AdamWOptions(0.1));
  expect_continues_with<RMSprop>(RMSpropOptions(0.1).momentum(0.9).centered(true));
  expect_continues_with<Adagrad>(AdagradOptions(0.1));
}

// A program may change them during training. A new process begins with the first ones.
TEST(State, GivesBackTheOptionsOfAnOptimizer) {
  using namespace torch::optim;
  auto net = network();
  SGD sgd(net->parameters(), SGDOptions(0.1).momentum(0.5));
  Adam adam(net->parameters(), AdamOptions(0.1));
  State state;
  state.add("sgd", sgd);
  state.add("adam", adam);
  auto& of_sgd = static_cast<SGDOptions&>(sgd.param_groups()[0].options());
  auto& of_adam = static_cast<AdamOptions&>(adam.param_groups()[0].options());
  of_sgd.momentum(0.9).weight_decay(1e-4);
  of_adam.betas({0.8, 0.95});
  const auto reader = saved_by(state, 2);
  of_sgd.momentum(0.5).weight_decay(0);
  of_adam.betas({0.9, 0.999});
  load_alone(state, reader);
  EXPECT_EQ(of_sgd.momentum(), 0.9);
  EXPECT_EQ(of_sgd.weight_decay(), 1e-4);
  EXPECT_EQ(of_adam.betas(), (std::tuple{0.8, 0.95}));
}

TEST(State, RefusesAnOptimizerThatItDoesNotKnow) {
  auto net = network();
  torch::optim::LBFGS optimizer(net->parameters(), torch::optim::LBFGSOptions(0.1));
  State state;
  expect_refused([&] { state.add("optimizer", static_cast<torch::optim::Optimizer&>(optimizer)); },
                 Errc::kInvalidArgument, "SGD, Adam, AdamW, RMSprop and Adagrad");
}

// A model with its optimizer is bound to each group, and goes on with the same bits.
TEST(State, BindsADataParallelModelToOneGroupAfterAnother) {
  const auto weights_after = [](bool changes_group) {
    at::Tensor weight;
    replicate(2, [&](const Group& first) {
      nn::Linear net(3, 2);
      {
        const torch::NoGradGuard no_grad;
        for (auto& param : net->parameters()) param.fill_(0.3);
      }
      auto model = engine::data_parallel(net);
      auto optimizer = model.optimizer<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1));
      State state;
      state.add("model", model);
      state.bind(first);
      const auto step = [&](const Group& world) {
        model.forward(torch::full({2, 3}, 1.0 + world.rank())).square().sum().backward();
        optimizer.step();
        optimizer.zero_grad();
      };
      for (int i = 0; i < 3; ++i) step(first);
      optimizer.set_lr(0.01);
      Group world = first;
      if (changes_group) {
        const checkpoint::Shards shards = state.shards(first, 3);
        const checkpoint::PackedLayout layout(shards);
        at::Tensor block = at::empty({layout.bytes()}, at::kByte), all;
        layout.copy_to(block);
        std::vector<checkpoint::Reader::Packed> blocks;
        for (int rank = 0; rank < 2; ++rank) {
          at::Tensor size = at::scalar_tensor(block.numel(), at::kLong);
          first.broadcast(size, rank);
          at::Tensor theirs =
              rank == first.rank() ? block : at::empty({size.item<std::int64_t>()}, at::kByte);
          first.broadcast(theirs, rank);
          blocks.push_back({theirs});
        }
        step(first);
        state.unbind();
        EXPECT_FALSE(model.is_bound());
        optimizer.set_lr(0.5);
        world = first.duplicate("second");
        state.bind(world);
        EXPECT_EQ(optimizer.steps(), 0);
        state.load(world, checkpoint::Reader::of_packed(blocks));
      }
      EXPECT_EQ(optimizer.steps(), 3);
      EXPECT_EQ(optimizer.lr(), 0.01);
      for (int i = 0; i < 2; ++i) step(world);
      if (world.rank() == 0) weight = net->weight.detach().clone();
      world.barrier();
    });
    return weight;
  };
  const at::Tensor wanted = weights_after(false);
  EXPECT_TRUE(torch::equal(weights_after(true), wanted));
}

TEST(State, NamesAModelThatHasNoGroup) {
  auto model = engine::data_parallel(nn::Linear(3, 2));
  const auto why = [&] { model.forward(torch::ones({1, 3})); };
  expect_refused(why, Errc::kInvalidArgument, "has no group yet: call bind(group)");
}

// A thing whose text is its state, and a sampler that is made for each group.
struct Words {
  std::string text;
  std::string save() const { return text; }
  void load(const std::string& saved) { text = saved; }
};
struct Position {
  std::int64_t epoch = 0, position = 0;
};
struct Sampler {
  int rank;
  Position at;
  Position state() const { return at; }
  void set_state(const Position& state) { at = state; }
};

TEST(State, FillsWhatIsMadeForAGroup) {
  Words words{"weft"};
  std::optional<Sampler> sampler;
  State state;
  state.add("words", words);
  state.add("sampler", sampler);
  state.on_group([&](const Group& world) { sampler.emplace(world.rank()); });
  expect_refused([&] { saved_by(state, 1); }, Errc::kInvalidArgument, "on_group() must fill it");
  replicate(1, [&](const Group& world) { state.bind(world); });
  sampler->at = {2, 96};
  const auto reader = saved_by(state, 2);
  words.text = "";
  state.unbind();
  EXPECT_FALSE(sampler);
  replicate(1, [&](const Group& world) {
    state.bind(world);
    state.load(world, reader);
  });
  EXPECT_EQ(words.text, "weft");
  EXPECT_EQ(sampler->at.epoch, 2);
  EXPECT_EQ(sampler->at.position, 96);
}

TEST(State, ContinuesTheRandomNumbersOfEachRank) {
  std::int64_t step = 0;
  State state;
  state.add("step", step);
  torch::manual_seed(7);
  torch::rand({5});
  const auto reader = saved_by(state, 2);
  const at::Tensor wanted = torch::rand({5});
  torch::manual_seed(8);
  load_alone(state, reader);
  EXPECT_TRUE(torch::equal(torch::rand({5}), wanted));
}

TEST(State, RefusesASecondRegistrationAndStrangeNames) {
  std::int64_t step = 0, other = 0;
  State state;
  state.add("step", step);
  expect_refused([&] { state.add("step", other); }, Errc::kInvalidArgument,
                 "\"step\" is registered twice");
  expect_refused([&] { state.add("again", step); }, Errc::kInvalidArgument,
                 "\"again\" is registered already, as \"step\"");
  for (const char* name : {"", "a b", "a/b", "a.b", "random", "codec"})
    expect_refused([&] { state.add(name, other); }, Errc::kInvalidArgument, "cannot be the name");
}

TEST(State, RefusesTheNameOfATensorThatNoCheckpointCanHave) {
  nn::Linear net(3, 2);
  net->register_buffer("scale]", torch::ones({2}));
  State state;
  state.add("net", net);
  replicate(2, [&](const Group& world) {
    expect_refused([&] { state.shards(world, 0); }, Errc::kInvalidArgument,
                   "no tensor can be called \"scale]\"");
  });
}

TEST(State, NamesTheFirstValueThatDoesNotFit) {
  auto net = network();
  State state;
  state.add("net", net);
  const auto reader = saved_by(state, 2);
  nn::Sequential wider(nn::Linear(3, 5), nn::BatchNorm1d(5));
  State other;
  other.add("net", wider);
  expect_refused([&] { load_alone(other, reader); }, Errc::kInvalidArgument,
                 "the saved \"0.weight\" of \"net\" has another shape");
  std::int64_t step = 0;
  State more;
  more.add("step", step);
  expect_refused([&] { load_alone(more, reader); }, Errc::kInvalidArgument,
                 "the saved state has no \"step\"; it is of another program");
  std::string note;
  State noted;
  noted.add("note", note);
  expect_refused([&] { load_alone(noted, reader); }, Errc::kInvalidArgument,
                 "the saved state has no \"note\"");
}

TEST(State, NamesAValueThatIsDamaged) {
  std::string text = "three";
  State texts;
  texts.add("epoch", text);
  const auto reader = saved_by(texts, 1);
  std::int64_t epoch = 0;
  State numbers;
  numbers.add("epoch", epoch);
  expect_refused([&] { load_alone(numbers, reader); }, Errc::kCorrupt, "elastic: \"epoch\": ");
}

TEST(State, DescribesWhatMustBeEqualOnAllRanks) {
  auto net = nn::Linear(3, 2);
  auto model = engine::data_parallel(net);
  auto optimizer = model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
  std::int64_t step = 0;
  State state;
  state.add("model", model);
  state.add("step", step);
  EXPECT_EQ(state.outline(),
            "model:; weight Float[2, 3]; bias Float[2]; optimizer with momentum_buffer; step:; ");
}

}  // namespace
}  // namespace weft::elastic

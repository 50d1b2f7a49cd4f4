// Codecs in data parallelism: over TCP between processes, and over hosts of several ranks.
#include <gtest/gtest.h>
#include <torch/nn/functional.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "weft/base/file.h"
#include "weft/checkpoint/reader.h"
#include "weft/checkpoint/sharded.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/comm/texts.h"
#include "weft/compress/spec.h"
#include "weft/engine/codec/codec_exchange.h"
#include "weft/engine/data_parallel.h"
#include "weft/engine/testing/small_model.h"

namespace weft::engine {
namespace codec_test {

using small_model::require;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(20, 64));
    last = register_module("last", torch::nn::Linear(64, 3));
    small_model::fill(*this);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::relu(first(x))); }
  torch::nn::Linear first{nullptr}, last{nullptr};
};
TORCH_MODULE(Net);

using Model = DataParallel<NetImpl>;

DataParallelOptions with(const std::string& codec) {
  DataParallelOptions options;
  options.codec = codec;
  options.first_bucket_bytes = 1024;  // two buckets
  options.bucket_bytes = 1024;
  return options;
}

torch::Tensor inputs(const Group& group, int rank, std::int64_t number) {
  return ((torch::arange(32 * 20, torch::kFloat) * 0.37 +
           static_cast<double>(number * group.size() + rank)) *
          12.9898)
      .sin()
      .view({32, 20});
}

// The class of a sample is the index of the largest of its first three numbers.
template <class AnyModel>
torch::Tensor loss_of(AnyModel& model, const torch::Tensor& x) {
  return torch::nn::functional::cross_entropy(model.forward(x),
                                              std::get<1>(x.slice(1, 0, 3).max(1)));
}

double step(Model& model, Optimizer& optim, const Group& group, std::int64_t number) {
  auto loss = loss_of(model, inputs(group, group.rank(), number));
  loss.backward();
  optim.step();
  optim.zero_grad();
  return loss.item<double>();
}

Optimizer sgd(const Model& model) {
  return model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
}

template <class AnyModel>
torch::Tensor flat_weights(const AnyModel& model) {
  std::vector<torch::Tensor> all;
  for (const auto& p : model->parameters()) all.push_back(p.detach().flatten());
  return torch::cat(all);
}

void expect_same_on_all_ranks(const Group& group, const torch::Tensor& mine,
                              const std::string& what) {
  torch::Tensor zeros = mine.clone();
  group.broadcast(zeros, 0);
  require(torch::equal(mine, zeros), what + ": the ranks' weights differ");
}

constexpr const char* kCodecs[] = {"none",           "bf16",       "f16",        "int8",
                                   "int4",           "sign:64",    "topk:0.1",   "randomk:0.25",
                                   "threshold:1e-3", "powersgd:2", "int8,delta", "auto"};

// Checks that the model learns and that all ranks have the same bits.
void learn(const Group& group, const std::string& codec) {
  torch::set_num_threads(1);
  auto model = data_parallel(Net(), group, with(codec));
  auto optim = sgd(model);
  // Losses of the first and of the last steps, summed over all ranks.
  torch::Tensor losses = torch::zeros({2}, torch::kDouble);
  for (int number = 0; number < 40; ++number) {
    const double loss = step(model, optim, group, number);
    if (number < 4) losses[0] += loss;
    if (number >= 36) losses[1] += loss;
  }
  group.all_reduce(losses);
  expect_same_on_all_ranks(group, flat_weights(model), codec);
  const double left = losses[1].item<double>() / losses[0].item<double>();
  require(left < 0.9, codec + " does not learn: " + std::to_string(left) + " of the loss is left");
}

int learn_with_all(const Group& group) {
  for (const char* codec : kCodecs) learn(group, codec);
  return 0;
}

int learn_with_one_of_each_exchange(const Group& group) {
  for (const char* codec : {"bf16", "topk:0.1", "threshold:1e-3", "powersgd:2", "auto"})
    learn(group, codec);
  return 0;
}

TEST(DataParallelCodec, LearnsWithEveryCodecWithTheSameBitsOnEveryRank) {
  for (int world : {2, 3})
    EXPECT_EQ(comm::fork_ranks(world, "tcp", learn_with_all),
              std::vector<int>(static_cast<std::size_t>(world), 0));
}

// A second model that loads weights and codec state continues like the first.
int go_on_from_state(const Group& group) {
  torch::set_num_threads(1);
  for (const char* codec : {"f16,ef=on", "int8", "topk:0.1,warmup=2", "powersgd:2", "int4,delta",
                            "randomk:0.25", "sign:64", "topk:0.1,momentum=before"}) {
    auto first = data_parallel(Net(), group, with(codec));
    auto optim = sgd(first);
    for (int number = 0; number < 5; ++number) step(first, optim, group, number);
    const TempDir mine;
    const std::string dir = comm::broadcast_text(group, mine.path());
    checkpoint::save(dir, {.step = 1, .parts = {{"codec", first.codec_slices()}}, .state = {}},
                     group);
    const checkpoint::Reader saved(dir + "/step-00000001");

    Net copy;
    {
      torch::NoGradGuard guard;
      auto from = first->parameters(), to = copy->parameters();
      for (std::size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
    }
    auto second = data_parallel(copy, group, with(codec));
    auto again = sgd(second);
    again.load_state(optim.state());
    second.load_codec(saved);
    for (int number = 5; number < 8; ++number) {
      step(first, optim, group, number);
      step(second, again, group, number);
    }
    require(torch::equal(flat_weights(first), flat_weights(second)),
            std::string(codec) + ": continues differently after loading the state");
    // A different codec loads nothing and works.
    auto other = data_parallel(Net(), group, with("int8:128"));
    auto other_optim = sgd(other);
    other.load_codec(saved);
    step(other, other_optim, group, 0);
    group.barrier();  // rank 0 removes the folder
  }
  return 0;
}

TEST(DataParallelCodec, ContinuesFromACheckpointBitForBit) {
  EXPECT_EQ(comm::fork_ranks(2, "tcp", go_on_from_state), (std::vector<int>{0, 0}));
}

const std::vector<std::vector<std::string>> kHosts = {{"a", "a", "b", "b"}, {"a", "b", "a"}};

TEST(DataParallelCodec, WorksOverHostsOfSeveralRanks) {
  for (const auto& hosts : kHosts) {
    const auto world = hosts.size();
    EXPECT_EQ(
        comm::fork_ranks(static_cast<int>(world), "auto", learn_with_one_of_each_exchange, hosts),
        std::vector<int>(world, 0));
    EXPECT_EQ(comm::fork_ranks(static_cast<int>(world), "auto", go_on_from_state, hosts),
              std::vector<int>(world, 0));
  }
}

// One process with the whole batch and torch's optimizer.
class Alone {
 public:
  explicit Alone(const torch::optim::SGDOptions& options) : optim_(net_->parameters(), options) {}
  void step(const Group& group, std::int64_t number) {
    std::vector<torch::Tensor> all;
    for (int rank = 0; rank < group.size(); ++rank) all.push_back(inputs(group, rank, number));
    optim_.zero_grad();
    loss_of(*net_, torch::cat(all)).backward();
    optim_.step();
  }
  torch::Tensor weights() const { return flat_weights(net_); }

 private:
  Net net_;
  torch::optim::SGD optim_;
};

// The codec memory of rank 0 for one weight. Only on rank 0.
std::int64_t remembered(Model& model, const Group& group) {
  std::int64_t count = 0;
  for (const auto& slice : model.codec_slices()) {
    if (slice.name == "memory.0") count += slice.tensor.numel();
  }
  require(group.rank() != 0 || !model.codec_slices().empty(), "rank 0 has no codec state");
  return count;
}

void expect_near(const torch::Tensor& mine, const torch::Tensor& want, const std::string& what) {
  const double most = (mine - want).abs().max().item<double>();
  require(most < 1e-5, what + ": differs by " + std::to_string(most));
}

// Warm-up steps do not round, so the weights equal those of torch's SGD, wherever the momentum is
// kept.
int be_sgd(const Group& group) {
  torch::set_num_threads(1);
  using torch::optim::SGDOptions;
  const auto plain = SGDOptions(0.05).weight_decay(0.01);
  for (const auto& [options, taken] : {std::pair{SGDOptions(plain).momentum(0.9), true},
                                       {SGDOptions(plain).momentum(0.9).nesterov(true), true},
                                       {SGDOptions(plain).momentum(0.9).dampening(0.5), false},
                                       {plain, false}}) {
    for (const std::string codec :
         {"randomk:0.5,momentum=before,warmup=1000", "sign:64,warmup=1000"}) {
      Alone alone(options);
      auto model = data_parallel(Net(), group, with(codec));
      auto optim = model.optimizer<torch::optim::SGD>(options);
      for (int number = 0; number < 12; ++number) {
        alone.step(group, number);
        step(model, optim, group, number);
      }
      expect_near(flat_weights(model), alone.weights(), codec);
      std::int64_t velocity = remembered(model, group);
      if (group.split() == nullptr && group.rank() == 0) {
        velocity -= alone.weights().numel();  // the part that was not sent
        require(velocity == (taken ? alone.weights().numel() : 0),
                codec + ": the momentum is in the wrong place");
      }
    }
  }
  return 0;
}

TEST(DataParallelCodec, AppliesMomentumBeforeTheCodecLikeTorchsSgd) {
  EXPECT_EQ(comm::fork_ranks(2, "tcp", be_sgd), (std::vector<int>{0, 0}));
  EXPECT_EQ(comm::fork_ranks(4, "auto", be_sgd, {"a", "a", "b", "b"}), std::vector<int>(4, 0));
}

int go_on_without_a_codec_before(const Group& group) {
  torch::set_num_threads(1);
  const auto options = torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01);
  Alone alone(options);
  Net net;
  auto first = data_parallel(net, group, with("none"));
  auto optim = first.optimizer<torch::optim::SGD>(options);
  for (int number = 0; number < 5; ++number) {
    alone.step(group, number);
    step(first, optim, group, number);
  }
  Net copy;
  {
    torch::NoGradGuard guard;
    auto from = net->parameters(), to = copy->parameters();
    for (std::size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
  }
  auto second = data_parallel(copy, group, with("randomk:0.5,momentum=before,warmup=1000"));
  auto again = second.optimizer<torch::optim::SGD>(options);
  again.load_state(optim.state());
  for (int number = 5; number < 12; ++number) {
    alone.step(group, number);
    step(second, again, group, number);
  }
  expect_near(flat_weights(second), alone.weights(), "a checkpoint without a codec");
  return 0;
}

TEST(DataParallelCodec, KeepsTheMomentumOfACheckpointWithoutACodec) {
  EXPECT_EQ(comm::fork_ranks(2, "tcp", go_on_without_a_codec_before), (std::vector<int>{0, 0}));
}

// Batches whose gradients zero_grad() drops, as those of a discriminator behind a generator, leave
// nothing in the codec's memory, and take nothing from it.
int drop_batches(const Group& group) {
  torch::set_num_threads(1);
  for (const char* codec : {"f16,ef=on", "int8", "topk:0.1,warmup=2", "powersgd:2", "int4,delta",
                            "randomk:0.25", "sign:64", "threshold:1e-3"}) {
    auto plain = data_parallel(Net(), group, with(codec));
    auto dropping = data_parallel(Net(), group, with(codec));
    auto optim = sgd(plain), other = sgd(dropping);
    for (int number = 0; number < 6; ++number) {
      for (int dropped = 0; dropped < number % 3; ++dropped) {
        loss_of(dropping, inputs(group, group.rank(), 50 + number)).backward();
        other.zero_grad();
      }
      step(plain, optim, group, number);
      step(dropping, other, group, number);
    }
    require(torch::equal(flat_weights(plain), flat_weights(dropping)),
            std::string(codec) + ": dropped batches count");
  }
  return 0;
}

TEST(DataParallelCodec, GoesOnAfterDroppedBatchesAsIfTheyHadNotBeen) {
  EXPECT_EQ(comm::fork_ranks(2, "tcp", drop_batches), (std::vector<int>{0, 0}));
  EXPECT_EQ(comm::fork_ranks(4, "auto", drop_batches, {"a", "a", "b", "b"}),
            std::vector<int>(4, 0));
}

// The same with an optimizer of torch. In steps 2 and 5, two batches add up and are dropped
// together.
int drop_batches_of_torch(const Group& group) {
  torch::set_num_threads(1);
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  for (const char* codec : {"f16,ef=on", "int8", "topk:0.1,warmup=2", "powersgd:2", "int4,delta",
                            "randomk:0.25", "sign:64", "threshold:1e-3"}) {
    auto plain = data_parallel(Net(), group, with(codec));
    auto dropping = data_parallel(Net(), group, with(codec));
    torch::optim::SGD optim(plain->parameters(), options), other(dropping->parameters(), options);
    for (int number = 0; number < 6; ++number) {
      for (int dropped = 0; dropped < number % 3; ++dropped)
        loss_of(dropping, inputs(group, group.rank(), 50 + number)).backward();
      other.zero_grad(/*set_to_none=*/number < 3);
      optim.zero_grad();
      loss_of(plain, inputs(group, group.rank(), number)).backward();
      loss_of(dropping, inputs(group, group.rank(), number)).backward();
      optim.step();
      other.step();
    }
    require(torch::equal(flat_weights(plain), flat_weights(dropping)),
            std::string(codec) + ": dropped batches count");
  }
  return 0;
}

TEST(DataParallelCodec, GoesOnAfterBatchesThatAnOptimizerOfTorchDroppedAsIfTheyHadNotBeen) {
  EXPECT_EQ(comm::fork_ranks(2, "tcp", drop_batches_of_torch), (std::vector<int>{0, 0}));
  EXPECT_EQ(comm::fork_ranks(4, "auto", drop_batches_of_torch, {"a", "a", "b", "b"}),
            std::vector<int>(4, 0));
}

struct TableImpl : torch::nn::Module {
  TableImpl() {
    rows = register_module("rows", torch::nn::Embedding(4096, 16));
    small_model::fill(*this);
  }
  torch::Tensor forward(const torch::Tensor& ids) { return rows(ids); }
  torch::nn::Embedding rows{nullptr};
};
TORCH_MODULE(Table);

// Steps change few rows, which weft mostly does not look at. Gradients do not depend on weights, so
// rounding does not change which of them are sent.
int train_a_table(const Group& group) {
  torch::set_num_threads(1);
  const auto options = torch::optim::SGDOptions(0.1);
  auto by_weft = data_parallel(Table(), group, with("topk:0.001"));
  auto by_torch = data_parallel(Table(), group, with("topk:0.001"));
  auto optim = by_weft.optimizer<torch::optim::SGD>(options);
  torch::optim::SGD other(by_torch->parameters(), options);
  for (int number = 0; number < 8; ++number) {
    const double phase = number + 0.5 * group.rank();
    const auto ids = torch::arange(8) * 37 + 300 * number + 5 * group.rank();
    const auto factors = (torch::arange(8 * 16, torch::kFloat) + phase).sin().view({8, 16});
    optim.zero_grad();
    other.zero_grad();
    (by_weft.forward(ids) * factors).sum().backward();
    (by_torch.forward(ids) * factors).sum().backward();
    optim.step();
    other.step();
  }
  expect_near(flat_weights(by_torch), flat_weights(by_weft), "a table");
  return 0;
}

TEST(DataParallelCodec, KeepsWhatItHasNotSentIfAnOptimizerOfTorchChangesFewRows) {
  EXPECT_EQ(comm::fork_ranks(2, "tcp", train_a_table), (std::vector<int>{0, 0}));
}

// The other rank adds to the gradients that rank 0 drops.
int drop_alone(const Group& group) {
  auto model = data_parallel(Net(), group, with("int8"));
  torch::optim::SGD optim(model->parameters(), torch::optim::SGDOptions(0.1));
  loss_of(model, inputs(group, group.rank(), 0)).backward();
  if (group.rank() == 0) optim.zero_grad();
  try {
    loss_of(model, inputs(group, group.rank(), 1)).backward();
  } catch (const Error& error) {
    require(std::string(error.what()).find("drop them on all ranks") != std::string::npos,
            error.what());
    return 0;
  }
  return 1;
}

TEST(DataParallelCodec, RefusesABatchThatAnOptimizerOfTorchDropsOnOneRank) {
  EXPECT_EQ(comm::fork_ranks(2, "tcp", drop_alone), (std::vector<int>{0, 0}));
}

int leave_the_range(const Group& group) {
  auto model = data_parallel(Net(), group, with("f16"));
  auto optim = sgd(model);
  step(model, optim, group, 0);
  (loss_of(model, inputs(group, group.rank(), 1)) * 1e8).backward();
  try {
    optim.step();
  } catch (const Error& error) {
    require(error.code() == Errc::kInvalidArgument, error.what());
    require(std::string(error.what()).find("not finite in the codec f16") != std::string::npos,
            error.what());
    require(torch::isfinite(flat_weights(model)).all().item<bool>(), "weights are not finite");
    return 0;
  }
  return 1;
}

TEST(DataParallelCodec, RefusesSumsThatLeaveTheRangeOfF16) {
  EXPECT_EQ(comm::fork_ranks(2, "tcp", leave_the_range), (std::vector<int>{0, 0}));
}

TEST(DataParallelCodec, RejectsAMisspelledCodec) {
  const auto codes = comm::fork_ranks(2, "tcp", [](const Group& group) {
    try {
      static_cast<void>(data_parallel(Net(), group, with("powersdg:4")));
    } catch (const Error& error) {
      require(error.code() == Errc::kInvalidArgument, "another code");
      require(std::string(error.what()).find("did you mean \"powersgd\"?") != std::string::npos,
              error.what());
      return 0;
    }
    return 1;
  });
  EXPECT_EQ(codes, (std::vector<int>{0, 0}));
}

}  // namespace codec_test
}  // namespace weft::engine

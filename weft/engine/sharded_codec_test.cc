// Gradients are compressed between replicas, and uncompressed inside the group that shards the
// parameters.
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <array>

#include "weft/base/testing/refusal.h"
#include "weft/engine/testing/small_model.h"

namespace weft::engine {
namespace sharded_codec_test {

using internal::Named;
using internal::require;
using namespace std::chrono_literals;

const internal::ModelOptions kSingle{.type = at::kFloat};

struct Way {
  int stage;
  Weights weights;
};
constexpr std::array<Way, 4> kWays = {{{1, Weights::kPrivate},
                                       {2, Weights::kPrivate},
                                       {3, Weights::kPrivate},
                                       {3, Weights::kShared}}};

// Ranks 0 and 1 shard the parameters, and so do 2 and 3. Ranks 0 and 2 have the same shard, and so
// have 1 and 3.
Sharded model_of(const Group& world, const Way& way, const std::string& codec) {
  const int r = world.rank();
  ShardedOptions options{.stage = way.stage, .weights = way.weights};
  options.average = ShardedOptions::Average::kSum;
  options.replicas = world.subgroup({r % 2, r % 2 + 2}, "replicas");
  options.codec = codec;
  const Group mine = world.subgroup({r / 2 * 2, r / 2 * 2 + 1}, "sharding");
  return {internal::blocks_of(make_parts(kSingle)), mine,
          optimizer_spec(torch::optim::AdamWOptions(1e-2), {}), options};
}

void train(Sharded& model, const Group& world, int step) {
  const at::Tensor x =
      internal::part_of(internal::batch_of(step, at::kFloat), world.rank(), world.size());
  model.zero_grad();
  (internal::loss_of(model.forward(x)) * (static_cast<double>(x.size(0)) / internal::kBatch))
      .backward();
  model.step();
}

// Ranks 0 and 2 return the whole states of the two replicas.
void expect_same_on_replicas(const Group& world, const Named& state, const std::string& what) {
  for (const auto& [name, tensor] : state) {
    if (world.rank() == 2) world.send(tensor.to(at::kDouble).contiguous(), 0, 7);
    if (world.rank() != 0) continue;
    at::Tensor theirs = at::empty(tensor.sizes(), at::kDouble);
    world.recv(theirs, 2, 7);
    require(at::equal(theirs, tensor.to(at::kDouble)), what + ": replicas differ in " + name);
  }
}

TEST(ShardedCodec, LearnsTheSameOnAllReplicasAndNearlyAsWellAsWithoutACodec) {
  const auto right =
      internal::by_torch<torch::optim::AdamW>(kSingle, torch::optim::AdamWOptions(1e-2));
  // Relative error of a gradient's 2-norm in one step: none, half of the last of 8 or 7 bits, and
  // the error of 4 bits in blocks of 8.
  struct Case {
    const char* codec;
    double most;
  };
  for (const Way& way : kWays) {
    comm::replicate(
        4,
        [&](const Group& world) {
          for (const Case& c : {Case{"none", 1e-5},
                                {"bf16", 0.01},
                                {"int8:64", 0.02},
                                {"int4:8", 0.2},
                                {"powersgd:10", 1e-4}}) {
            const std::string what = std::string(c.codec) + " at stage " +
                                     std::to_string(way.stage) + ", " + to_string(way.weights);
            Sharded model = model_of(world, way, c.codec);
            for (int step = 0; step + 1 < internal::kSteps; ++step) train(model, world, step);
            const auto before = model.state();
            train(model, world, internal::kSteps - 1);
            const auto state = model.state(), gradients = model.gradients();
            expect_same_on_replicas(world, Named(state.begin(), state.end()), what);
            require(model.codec_steps() == internal::kSteps,
                    what + ": the codec did not count its steps");
            if (world.rank() > 0) continue;
            for (const auto& [name, tensor] : gradients) {
              // The weights differ by the rounding errors of earlier steps.
              const double lost = (tensor - right.gradients.at(name)).norm().item<double>(),
                           norm = right.gradients.at(name).norm().item<double>();
              require(lost <= 3 * c.most * std::max(norm, 0.01), what + ": " + name + " has lost " +
                                                                     std::to_string(lost) + " of " +
                                                                     std::to_string(norm));
            }
          }
        },
        30s);
  }
}

// The values that the codec did not send stay on the rank and are sent later, all of them in the
// end.
TEST(ShardedCodec, KeepsTheValuesThatItDidNotSend) {
  comm::replicate(4, [](const Group& world) {
    Sharded all = model_of(world, {2, Weights::kPrivate}, "none"),
            some = model_of(world, {2, Weights::kPrivate}, "randomk:0.25");
    Named sum, sent;
    const at::Tensor x = internal::part_of(internal::batch_of(0, at::kFloat), world.rank(), 4);
    for (int step = 0; step < 24; ++step) {
      for (Sharded* model : {&all, &some}) {
        model->set_lr(0);  // the gradient is the same in each round
        model->zero_grad();
        (internal::loss_of(model->forward(x)) * (static_cast<double>(x.size(0)) / internal::kBatch))
            .backward();
        for (const auto& [name, tensor] : model->gradients()) {
          at::Tensor& into = (model == &all ? sum : sent)[name];
          into = into.defined() ? into + tensor : tensor.clone();
        }
        model->step();
      }
    }
    for (const auto& [name, tensor] : sum) {
      // A value waits for 4 rounds on average. After 24 rounds, the gradients of at most about 8
      // rounds are not sent yet.
      const at::Tensor missing = (tensor - sent.at(name)).abs();
      require(missing.le(tensor.abs() * (9.0 / 24) + 1e-6).all().item<bool>(),
              name + " never came");
      require(world.rank() > 0 || missing.max().item<double>() > 0, name + " was not compressed");
    }
  });
}

// Gradients that zero_grad() drops leave nothing in the codec's memory, and take nothing from it.
TEST(ShardedCodec, GoesOnAfterDroppedBatchesAsIfTheyHadNotBeen) {
  for (const Way& way : kWays) {
    for (const std::string codec : {"topk:0.1", "powersgd:2", "int4:8,delta", "randomk:0.25"}) {
      comm::replicate(4, [&](const Group& world) {
        Sharded plain = model_of(world, way, codec), dropping = model_of(world, way, codec);
        for (int step = 0; step < 4; ++step) {
          train(plain, world, step);
          for (int dropped = 0; dropped < step % 3; ++dropped) {
            const at::Tensor x = internal::part_of(internal::batch_of(9 + dropped, at::kFloat),
                                                   world.rank(), world.size());
            dropping.zero_grad();
            internal::loss_of(dropping.forward(x)).backward();
            dropping.grad_norm();
          }
          train(dropping, world, step);
        }
        const auto expected = plain.state(), state = dropping.state();
        for (std::size_t i = 0; i < expected.size(); ++i) {
          require(at::equal(expected[i].second, state[i].second),
                  codec + ": " + expected[i].first + " has other bits");
        }
      });
    }
  }
}

TEST(ShardedCodec, RefusesSumsThatLeaveTheRangeOfF16) {
  EXPECT_THAT(refusal([] {
                comm::replicate(4, [](const Group& world) {
                  Sharded model = model_of(world, {2, Weights::kPrivate}, "f16");
                  model.set_samples(1);
                  const at::Tensor x = internal::batch_of(0, at::kFloat);
                  (internal::loss_of(model.forward(x)) * 1e6).backward();
                  model.step();
                });
              }),
              testing::HasSubstr("a sum of gradients is not finite in the codec f16"));
}

TEST(ShardedCodec, ContinuesFromItsMemoryWithTheSameBits) {
  for (const Way& way : {kWays[1], kWays[3]}) {
    for (const std::string codec : {"topk:0.1", "powersgd:2,warmup=2", "int4:8,delta"}) {
      comm::replicate(4, [&](const Group& world) {
        Sharded whole = model_of(world, way, codec), first = model_of(world, way, codec),
                then = model_of(world, way, codec);
        for (int step = 0; step < 6; ++step) train(whole, world, step);
        for (int step = 0; step < 3; ++step) train(first, world, step);
        then.load_state(first.state());
        const auto from = first.codec_memory(), to = then.codec_memory();
        require(!to.empty() && from.size() == to.size(), codec + " remembers nothing");
        for (std::size_t i = 0; i < to.size(); ++i)
          std::copy(from[i].begin(), from[i].end(), to[i].begin());
        then.set_codec_steps(first.codec_steps());
        for (int step = 3; step < 6; ++step) train(then, world, step);
        const auto expected = whole.state(), state = then.state();
        for (std::size_t i = 0; i < expected.size(); ++i) {
          require(at::equal(expected[i].second, state[i].second),
                  codec + ": " + expected[i].first + " has other bits");
        }
      });
    }
  }
}

TEST(ShardedCodec, RejectsUnsupportedOptions) {
  comm::replicate(2, [](const Group& world) {
    const Group alone = world.subgroup({world.rank()}, "alone");
    const auto refused = [&](const std::string& codec, ShardedOptions options) {
      options.codec = codec;
      options.replicas = world;
      const auto spec = optimizer_spec(torch::optim::SGDOptions(1.0), {});
      return refusal(
          [&] { Sharded(internal::blocks_of(make_parts(kSingle)), alone, spec, options); });
    };
    const ShardedOptions sum{.average = ShardedOptions::Average::kSum};
    ShardedOptions narrow = sum;
    narrow.reduce = at::kBFloat16;
    require(refused("auto", sum).find("name a codec") != std::string::npos, "auto was taken");
    require(refused("int8", {}).find("average by ranks, or sum") != std::string::npos,
            "an average by samples was accepted");
    require(refused("int8", narrow).find("a codec needs float32 gradients, not BFloat16") !=
                std::string::npos,
            refused("int8", narrow));
    require(refused("in8", sum).find("int8") != std::string::npos, "an unknown codec was accepted");
    require(refused("int8", sum) == "accepted", refused("int8", sum));
  });
}

}  // namespace sharded_codec_test
}  // namespace weft::engine

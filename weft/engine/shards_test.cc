// Sharded models whose state no rank ever holds whole: made block by block, saved and loaded as
// slices.
#include <torch/optim/adamw.h>

#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"
#include "weft/checkpoint/reader.h"
#include "weft/checkpoint/sharded.h"
#include "weft/engine/parameter_cuts.h"
#include "weft/engine/testing/small_model.h"

namespace weft::engine {
namespace shards_test {

using namespace std::chrono_literals;
using internal::blocks_of;
using internal::by_torch;
using internal::make_parts;
using internal::ModelOptions;
using internal::options_of;
using internal::require;

const auto kOptions = torch::optim::AdamWOptions(1e-2).weight_decay(0.1);

// Each block is made when it is asked for; the others may have been cut by then.
Sharded make_by_block(const ModelOptions& how, const Group& group, const ShardedOptions& options) {
  std::vector<std::function<Block()>> makers;
  const auto parts = std::make_shared<std::vector<internal::Part>>(make_parts(how));
  for (std::size_t i = 0; i < parts->size(); ++i) {
    makers.emplace_back([parts, i] { return blocks_of(*parts)[i]; });
  }
  return Sharded::make(makers, group, optimizer_spec(kOptions, {}), options);
}

void save(Sharded& model, const std::string& dir, const Group& group) {
  checkpoint::save(dir, {.step = model.steps(), .parts = {{"model", model.shards()}}, .state = {}},
                   group);
}

TEST(ShardsOfSharded, GoOnUnderAnyOtherNumberOfRanksStageAndForm) {
  const TempDir dir;
  const ModelOptions how{.tie = true, .freeze = true};
  const auto expected = by_torch<torch::optim::AdamW>(how, kOptions);
  Sharded::NamedTensors last;
  const auto train_steps = [&](int ranks, int stage, Weights weights, int from, int to) {
    replicate(
        ranks,
        [&](Group group) {
          auto model = make_by_block(how, group, options_of(stage, weights));
          if (from > 0)
            model.load_shards(checkpoint::Reader(*checkpoint::latest(dir.path(), group).folder));
          require(model.steps() == from, "the number of steps was not taken over");
          for (int step = from; step < to; ++step) {
            internal::train(model, group, step, how);
            model.zero_grad();
          }
          save(model, dir.path(), group);
          auto state = model.state();
          if (group.rank() == 0) last = std::move(state);
        },
        20s);
  };
  train_steps(2, 3, Weights::kPrivate, 0, 2);
  train_steps(3, 2, Weights::kShared, 2, 3);
  train_steps(4, 1, Weights::kPrivate, 3, 4);
  train_steps(1, 3, Weights::kAuto, 4, internal::kSteps);
  internal::expect_close(internal::weights_in(last, expected.weights), expected.weights, 1e-10,
                         "weights after four groups");
  // The last one's files have what state() has, whole.
  const auto whole = checkpoint::load(*checkpoint::latest(dir.path()).folder).parts.at("model");
  EXPECT_EQ(whole.size(), last.size());
  for (const auto& [name, tensor] : last) EXPECT_TRUE(at::equal(whole.at(name), tensor)) << name;
}

TEST(ShardsOfSharded, AreTogetherTheStateOnceWhateverTheStageAndForm) {
  for (const int stage : {1, 2, 3}) {
    for (Weights weights : {Weights::kShared, Weights::kPrivate}) {
      replicate(
          3,
          [&](Group group) {
            auto model = make_by_block({.tie = true}, group, options_of(stage, weights));
            internal::train(model, group, 0, {.tie = true});
            std::int64_t bytes = 0;
            for (const auto& slice : model.shards())
              bytes += static_cast<std::int64_t>(slice.tensor.nbytes());
            std::int64_t whole = 0;
            for (const auto& [name, tensor] : model.state())
              whole += static_cast<std::int64_t>(tensor.nbytes());
            at::Tensor sums = at::tensor({bytes, whole}, at::kLong);
            group.all_reduce(sums);
            require(sums[0].item<std::int64_t>() == sums[1].item<std::int64_t>(),
                    "the slices are not the state once");
            require(bytes * 2 < sums[1].item<std::int64_t>(), "a rank has more than its share");
          },
          20s);
    }
  }
}

TEST(ShardsOfSharded, HaveParametersWithoutEntries) {
  for (const int stage : {0, 1, 3}) {
    const TempDir dir;
    replicate(
        2,
        [&](Group group) {
          auto parts = make_parts({});
          parts[1]->register_parameter("none", torch::empty({0, 4}, at::kDouble));
          Sharded model(blocks_of(parts), group, optimizer_spec(kOptions, {}),
                        options_of(stage, Weights::kPrivate));
          save(model, dir.path(), group);
          const auto state = model.state();
          const std::string folder = *checkpoint::latest(dir.path(), group).folder;
          const auto saved = checkpoint::load(folder).parts.at("model");
          require(saved.contains("b1.none"), "b1.none is not saved");
          for (const auto& [name, tensor] : state)
            require(at::equal(saved.at(name), tensor), name + " is not saved");
          model.load_shards(checkpoint::Reader(folder));
        },
        20s);
  }
}

TEST(ShardsOfSharded, MadeBlockByBlockAreRankZerosAndTheSameBits) {
  replicate(
      2,
      [&](Group group) {
        const ModelOptions how{.tie = true};
        auto parts = std::make_shared<std::vector<internal::Part>>(make_parts(how));
        std::vector<std::function<Block()>> makers;
        for (std::size_t i = 0; i < parts->size(); ++i) {
          makers.emplace_back([parts, i, rank = group.rank()] {
            const torch::NoGradGuard guard;
            if (rank > 0) (*parts)[i]->fc->bias.fill_(7);  // rank 0's values count
            return blocks_of(*parts)[i];
          });
        }
        auto model = Sharded::make(makers, group, optimizer_spec(kOptions, {}),
                                   options_of(3, Weights::kPrivate));
        Sharded plain(blocks_of(make_parts(how)), group, optimizer_spec(kOptions, {}),
                      options_of(3, Weights::kPrivate));
        const auto made = model.state(), expected = plain.state();
        require(made.size() == expected.size(), "another number of tensors");
        for (std::size_t i = 0; i < made.size(); ++i)
          require(at::equal(made[i].second, expected[i].second), made[i].first + " differs");
      },
      20s);
}

// Parameters that are parts of one tensor.
struct PartsImpl : torch::nn::Module {
  // Equal places: both are the same part.
  explicit PartsImpl(std::int64_t second_place) {
    const at::Tensor all = (torch::arange(32, at::kDouble) * 0.7).sin().view({2, 4, 4});
    first = register_parameter("first", all[0]);
    second = register_parameter("second", all[second_place]);
  }
  at::Tensor forward(const at::Tensor& x) const { return x.mm(first).mm(second); }
  at::Tensor first, second;
};

TEST(ShardsOfSharded, MayBeOfParametersThatArePartsOfOneTensor) {
  replicate(
      2,
      [](Group group) {
        const auto net = std::make_shared<PartsImpl>(1);
        internal::Named expected;
        internal::add_weights(expected, "net.", *net);
        const std::vector<std::function<Block()>> makers{[&] { return block("net", net); }};
        for (const int stage : {1, 2, 3}) {
          auto model = Sharded::make(makers, group, optimizer_spec(kOptions, {}),
                                     options_of(stage, Weights::kPrivate));
          const auto state = model.state();
          if (group.rank() == 0)
            internal::expect_close(internal::weights_in(state, expected), expected, 1e-12,
                                   model.describe());
        }
        ParameterCuts cuts(group);
        const auto same = std::make_shared<PartsImpl>(0);
        expect_refused([&] { cuts.cut(*same); }, Errc::kInvalidArgument,
                       "'first' and 'second' have the same memory");
      },
      20s);
}

// Has no memory for the values.
class WithoutMemory final : public checkpoint::SliceSource {
 public:
  explicit WithoutMemory(const checkpoint::SliceSource& source) : source_(source) {}
  bool has(const std::string& name) const override { return source_.has(name); }
  void check(const checkpoint::Slices& slices) const override { source_.check(slices); }
  void fill(const checkpoint::Slices&) const override { throw std::bad_alloc(); }

 private:
  const checkpoint::SliceSource& source_;
};

TEST(ShardsOfSharded, ARankThatCannotLoadTellsTheOthersWhyAndAllCanTryAgain) {
  const TempDir dir;
  replicate(
      2,
      [&](Group group) {
        auto model = make_by_block({}, group, options_of(3, Weights::kPrivate));
        save(model, dir.path(), group);
        const checkpoint::Reader reader(dir / "step-00000000");
        if (group.rank() == 1) {
          EXPECT_THROW(model.load_shards(WithoutMemory(reader)), std::bad_alloc);
        } else {
          expect_refused([&] { model.load_shards(reader); }, Errc::kAborted,
                         "rank 1 cannot load its slices: Unavailable: out of memory");
        }
        model.load_shards(reader);
      },
      20s);
}

TEST(ShardsOfSharded, OfAnotherModelAreRefusedOnAllRanksAndNothingChanges) {
  const TempDir dir;
  replicate(
      2,
      [&](Group group) {
        auto other = make_by_block({.width = 12}, group, options_of(3, Weights::kPrivate));
        save(other, dir.path(), group);
        auto model = make_by_block({}, group, options_of(3, Weights::kPrivate));
        const auto before = model.state();
        const checkpoint::Reader reader(dir / "step-00000000");
        expect_refused([&] { model.load_shards(reader); }, Errc::kInvalidArgument, "another shape");
        const auto after = model.state();
        for (std::size_t i = 0; i < before.size(); ++i)
          require(at::equal(before[i].second, after[i].second), before[i].first + " changed");
        other.load_weights(reader);
      },
      20s);
}

TEST(ShardsOfSharded, ThatAreRefusedLeaveWhatTheProgramHasLoaded) {
  const TempDir dir;
  replicate(
      2,
      [&](Group group) {
        auto other = make_by_block({.width = 12}, group, options_of(3, Weights::kPrivate));
        save(other, dir.path(), group);
        const checkpoint::Reader reader(dir / "step-00000000");
        for (const int stage : {0, 1}) {
          const auto parts = make_parts({});
          Sharded model(blocks_of(parts), group, optimizer_spec(kOptions, {}),
                        options_of(stage, Weights::kPrivate));
          at::Tensor bias = parts[0]->fc->bias;
          const at::Tensor loaded = torch::full_like(bias.detach(), 3);
          bias.set_data(loaded.clone());
          expect_refused([&] { model.load_shards(reader); }, Errc::kInvalidArgument,
                         "another shape");
          EXPECT_TRUE(at::equal(bias, loaded)) << "stage " << stage;
        }
      },
      20s);
}

}  // namespace shards_test
}  // namespace weft::engine

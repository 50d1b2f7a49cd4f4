// Checkpoints that no rank ever holds completely, from any plan to any other.
#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"
#include "weft/checkpoint/reader.h"
#include "weft/checkpoint/sharded.h"
#include "weft/parallel/compose/testing/parity.h"

namespace weft::parallel::internal {
namespace {

// Runs steps [first, last) under a case, from the newest checkpoint in `dir`, and saves another
// one. Returns the state.
ParallelModel::NamedTensors go_on_sharded(const Case& c, const Tiny& how, std::pair<int, int> steps,
                                          const std::string& dir) {
  ParallelModel::NamedTensors left;
  replicate(c.world(), [&](const Group& group) {
    ParallelModel model = parallelize(tiny_model(how), trained_by(c), Mesh(group, c.axes));
    if (steps.first > 0)
      model.load_shards(checkpoint::Reader(*checkpoint::latest(dir, group).folder));
    EXPECT_EQ(model.steps(), steps.first) << c.name();
    for (int step = steps.first; step < steps.second; ++step) {
      train(model, step, how.length);
      model.step();
    }
    checkpoint::save(dir, {.step = steps.second, .parts = model.shards(), .state = {}}, group);
    auto state = model.state();
    if (group.rank() == 0) left = std::move(state);
  });
  return left;
}

void expect_same_files(const std::string& dir, const ParallelModel::NamedTensors& state,
                       const std::string& what) {
  checkpoint::TensorMap whole;
  for (const auto& [part, tensors] : checkpoint::load(*checkpoint::latest(dir).folder).parts)
    whole.insert(tensors.begin(), tensors.end());
  EXPECT_EQ(whole.size(), state.size()) << what;
  for (const auto& [name, tensor] : state) {
    ASSERT_TRUE(whole.count(name)) << what << ": " << name;
    EXPECT_TRUE(at::equal(whole.at(name), tensor)) << what << ": " << name;
  }
}

void expect_goes_on(const std::vector<Case>& cases, const Tiny& how) {
  ParallelModel::NamedTensors one;
  go_on(on({}), how, {0, kSteps}, one);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case &first = cases[i], &second = cases[(i + 1) % cases.size()];
    const TempDir dir;
    expect_same_files(dir.path(), go_on_sharded(first, how, {0, 2}, dir.path()), first.name());
    const auto state = go_on_sharded(second, how, {2, kSteps}, dir.path());
    expect_same_files(dir.path(), state, second.name());
    expect_close(named(state), named(one), 1e-10, first.name() + ", then " + second.name());
  }
}

TEST(ComposeShards, OfOnePlanContinueUnderAnother) {
  expect_goes_on(
      {on({{"pp", 2}, {"dp", 2}}, {.schedule = Algorithm::kInterleaved, .micro_batches = 2}),
       on({{"fsdp", 2}, {"tp", 2}}, {.weights = Weights::kPrivate}),
       on({{"pp", 3}}, {.micro_batches = 3}), on({{"dp", 3}}),
       on({{"dp", 2}, {"fsdp", 2}}, {.zero_stage = 1}),
       on({{"pp", 2}, {"fsdp", 2}, {"tp", 2}}, {.micro_batches = 2})},
      {});
}

TEST(ComposeShards, OfExpertsContinueUnderAnotherPlan) {
  expect_goes_on({on({{"ep", 2}}), on({{"dp", 2}, {"tp", 2}}), on({{"fsdp", 2}, {"ep", 2}})},
                 {.experts = 4});
}

TEST(ComposeShards, LoadWeightsAloneAndRejectAnotherModelOnAllRanks) {
  const TempDir dir;
  go_on_sharded(on({{"fsdp", 2}}), {.width = 12}, {0, 1}, dir.path());
  replicate(4, [&](const Group& group) {
    const checkpoint::Reader reader(dir / "step-00000001");
    const Case c = on({{"pp", 2}, {"fsdp", 2}}, {.micro_batches = 2});
    ParallelModel other = parallelize(tiny_model({}), trained_by(c), Mesh(group, c.axes));
    expect_refused([&] { other.load_shards(reader); }, Errc::kInvalidArgument, "load_shards: ");
    train(other, 0, kLength);  // it goes on
    ParallelModel model =
        parallelize(tiny_model({.width = 12}), trained_by(c), Mesh(group, c.axes));
    model.load_weights(reader);
    EXPECT_EQ(model.steps(), 0);
    const auto state = named(model.state());
    if (group.rank() > 0) return;
    for (const auto& [name, tensor] : state) {
      if (name.ends_with(".weight")) {
        EXPECT_TRUE(at::equal(tensor, reader.read("model", name))) << name;
      } else if (name.ends_with(".exp_avg")) {
        EXPECT_EQ(tensor.abs().max().item<double>(), 0) << name;
      }
    }
  });
}

// Has no memory to look at the slices.
class WithoutMemory final : public checkpoint::SliceSource {
 public:
  explicit WithoutMemory(const checkpoint::SliceSource& source) : source_(source) {}
  bool has(const std::string& name) const override { return source_.has(name); }
  void check(const checkpoint::Slices&) const override { throw std::bad_alloc(); }
  void fill(const checkpoint::Slices& slices) const override { source_.fill(slices); }

 private:
  const checkpoint::SliceSource& source_;
};

TEST(ComposeShards, ARankThatCannotCheckThemTellsTheOthersWhy) {
  const TempDir dir;
  const Case c = on({{"pp", 2}}, {.micro_batches = 2});
  go_on_sharded(c, {}, {0, 1}, dir.path());
  replicate(
      c.world(),
      [&](const Group& group) {
        ParallelModel model = parallelize(tiny_model({}), trained_by(c), Mesh(group, c.axes));
        const checkpoint::Reader reader(dir / "step-00000001");
        if (group.rank() == 1) {
          expect_refused([&] { model.load_shards(WithoutMemory(reader)); }, Errc::kUnavailable,
                         "load_shards: Unavailable: out of memory");
        } else {
          expect_refused([&] { model.load_shards(reader); }, Errc::kAborted,
                         "load_shards: rank 1 failed: Unavailable: out of memory");
        }
        model.load_shards(reader);
        EXPECT_EQ(model.steps(), 1);
      },
      std::chrono::seconds(20));
}

// At ZeRO-3 under pp and tp, what a rank saves is its share of the state.
TEST(ComposeShards, HaveTheSameBytesOnEachRank) {
  const Case c = on({{"dp", 2}, {"fsdp", 2}, {"tp", 2}}, {.weights = Weights::kPrivate});
  replicate(c.world(), [&](const Group& group) {
    ParallelModel model =
        parallelize(tiny_model({.width = 32}), trained_by(c), Mesh(group, c.axes));
    double bytes = 0;
    for (const auto& [part, slices] : model.shards()) {
      for (const auto& slice : slices) bytes += static_cast<double>(slice.tensor.nbytes());
    }
    at::Tensor all = at::scalar_tensor(bytes, at::kDouble);
    group.all_reduce(all);
    EXPECT_NEAR(bytes, all.item<double>() / c.world(), 0.2 * bytes);
  });
}

}  // namespace
}  // namespace weft::parallel::internal

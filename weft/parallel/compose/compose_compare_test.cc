// Values that several ranks hold: no plan makes them differ, and a flipped bit is found.
#include <random>

#include "weft/parallel/compose/testing/parity.h"

namespace weft::parallel::internal {
namespace {

void step(ParallelModel& model, int number) {
  train(model, number, kLength);
  model.step();
}

// Flips a bit of this rank's weights or optimizer state, chosen by `random`. Returns the tensor's
// name.
std::string flip_bit(ParallelModel& model, std::mt19937& random) {
  checkpoint::Slices slices;
  for (const auto& [part, some] : model.shards()) {
    for (const checkpoint::Slice& slice : some) {
      if (slice.tensor.dim() > 0) slices.push_back(slice);  // not a number of steps
    }
  }
  checkpoint::Slice& slice = slices.at(random() % slices.size());
  auto* const bytes = static_cast<unsigned char*>(slice.tensor.data_ptr());
  bytes[random() % slice.tensor.nbytes()] ^= static_cast<unsigned char>(1u << random() % 8);
  return slice.name;
}

TEST(CompareReplicas, FindsNoDifferenceUnderAnyPlan) {
  const Weights kPrivate = Weights::kPrivate;
  for (const Case& c :
       {on({{"dp", 3}}), on({{"dp", 2}}, {.weights = kPrivate}),
        on({{"dp", 2}, {"tp", 2}}, {.weights = kPrivate}),
        on({{"dp", 2}, {"fsdp", 2}}, {.zero_stage = 1, .weights = kPrivate}),
        on({{"dp", 2}, {"fsdp", 2}}, {.zero_stage = 3}),
        on({{"pp", 2}, {"dp", 2}}, {.schedule = Algorithm::kInterleaved, .micro_batches = 2})}) {
    replicate(c.world(), [&](const Group& group) {
      ParallelModel model = parallelize(tiny_model({}), trained_by(c), Mesh(group, c.axes));
      for (int number = 0; number < 2; ++number) {
        step(model, number);
        EXPECT_TRUE(model.compare_replicas().empty()) << c.name();
      }
    });
  }
}

TEST(CompareReplicas, HealsEachFlippedBitFromTheMajority) {
  const Case c = on({{"dp", 3}}, {.weights = Weights::kPrivate});
  replicate(c.world(), [&](const Group& group) {
    ParallelModel model = parallelize(tiny_model({}), trained_by(c), Mesh(group, c.axes));
    ParallelModel other = parallelize(tiny_model({}), trained_by(c), Mesh(group, c.axes));
    step(model, 0);
    step(other, 0);
    std::mt19937 random(1);  // the same numbers on all ranks
    for (int flip = 0; flip < 100; ++flip) {
      const int rank = static_cast<int>(random() % 3);
      std::mt19937 where(static_cast<unsigned>(flip));
      const std::string name = group.rank() == rank ? flip_bit(model, where) : "";
      const auto found = model.compare_replicas();
      ASSERT_EQ(found.size(), 1u) << "flip " << flip;
      EXPECT_TRUE(found[0].is_healed);
      EXPECT_EQ(found[0].ranks, std::vector<int>{rank});
      if (group.rank() == rank) {
        EXPECT_EQ(found[0].tensor, name);
      }
      EXPECT_TRUE(model.compare_replicas().empty());
    }
    step(model, 1);
    step(other, 1);
    const Named healed = named(model.state()), undisturbed = named(other.state());
    for (const auto& [name, tensor] : undisturbed)
      EXPECT_TRUE(at::equal(healed.at(name), tensor)) << name;
  });
}

TEST(CompareReplicas, HealsWeightsThatAreSharded) {
  const Case c = on({{"dp", 3}, {"fsdp", 2}}, {.zero_stage = 3, .weights = Weights::kPrivate});
  replicate(c.world(), [&](const Group& group) {
    ParallelModel model = parallelize(tiny_model({}), trained_by(c), Mesh(group, c.axes));
    step(model, 0);
    std::mt19937 where(7);
    if (group.rank() == 4) flip_bit(model, where);
    const auto found = model.compare_replicas();
    ASSERT_EQ(found.size(), 1u);
    EXPECT_TRUE(found[0].is_healed);
    EXPECT_EQ(found[0].ranks, std::vector<int>{4});
    EXPECT_TRUE(model.compare_replicas().empty());
    step(model, 1);
    EXPECT_TRUE(model.compare_replicas().empty());
  });
}

TEST(CompareReplicas, NamesAllHoldersWithoutAMajority) {
  const Case c = on({{"dp", 2}}, {.weights = Weights::kPrivate});
  replicate(c.world(), [&](const Group& group) {
    ParallelModel model = parallelize(tiny_model({}), trained_by(c), Mesh(group, c.axes));
    step(model, 0);
    std::mt19937 where(3);
    if (group.rank() == 1) flip_bit(model, where);
    const auto found = model.compare_replicas();
    ASSERT_EQ(found.size(), 1u);
    EXPECT_FALSE(found[0].is_healed);
    EXPECT_EQ(found[0].ranks, (std::vector<int>{0, 1}));
    EXPECT_EQ(model.compare_replicas().size(), 1u);  // it stays until the state is loaded again
  });
}

}  // namespace
}  // namespace weft::parallel::internal

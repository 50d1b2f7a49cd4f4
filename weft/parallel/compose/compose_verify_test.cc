// A processor that computes wrongly is found by computing again on another rank.
#include <cstring>

#include "weft/base/testing/refusal.h"
#include "weft/parallel/compose/internal/verification.h"
#include "weft/parallel/compose/testing/parity.h"
#include "weft/parallel/compose/testing/tampered.h"

namespace weft::parallel::internal {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(WhoIsWrong, IsTheRankThatDisagreesWithItselfElseWithTheThird) {
  const Checksums right = {1, 2}, wrong = {1, 3}, other = {1, 4};
  EXPECT_EQ(who_is_wrong({right, right, right, right}), Wrong::kNobody);
  EXPECT_EQ(who_is_wrong({wrong, right, right, right}), Wrong::kOwner);
  EXPECT_EQ(who_is_wrong({right, right, wrong, right}), Wrong::kChecker);
  EXPECT_EQ(who_is_wrong({wrong, wrong, right, right}), Wrong::kEither);
  EXPECT_EQ(who_is_wrong({wrong, wrong, right, right, right}), Wrong::kOwner);
  EXPECT_EQ(who_is_wrong({right, right, wrong, wrong, right}), Wrong::kChecker);
  EXPECT_EQ(who_is_wrong({right, right, wrong, wrong, other}), Wrong::kEither);
  EXPECT_EQ(who_is_wrong({wrong, right, other, right}), Wrong::kEither);  // both change
}

void flip(at::Tensor& gradient, int bit) {
  std::uint32_t bits = 0;
  float* const number = gradient.data_ptr<float>() + 1;
  std::memcpy(&bits, number, sizeof bits);
  bits ^= 1u << bit;
  std::memcpy(number, &bits, sizeof bits);
}

// A rank's model, and what happens to its gradients.
struct Rank {
  Rank(const Group& world, const Case& c, Tiny tiny = {.type = at::kFloat, .dropout = 0.2})
      : model(parallelize(tampered(tiny_model(tiny), how), trained_by(c), Mesh(world, c.axes))) {}

  // A verified step; false if it was skipped. `tamper`: only in the pass that counts.
  bool step(int batch, const std::function<void(at::Tensor&)>& once = nullptr) {
    const auto share = [&](int shift) {
      return share_of(tokens_of(batch, shift), model.replica(), model.replicas());
    };
    const auto seed = [](int replica) { torch::manual_seed(replica); };
    model.zero_grad();
    model.verify({share(0)}, {share(1)}, seed);
    if (once) how->change = once;
    model.forward_backward({share(0)}, {share(1)});
    if (once) how->change = nullptr;
    return model.step();
  }

  std::shared_ptr<Tampering> how =
      std::make_shared<Tampering>(Tampering{"body.1.norm.weight", nullptr});
  ParallelModel model;
};

TEST(Verify, FindsNothingUnderAnyPlanAndChangesNoBit) {
  const Weights kPrivate = Weights::kPrivate;
  for (const Case& c : {on({{"dp", 2}}), on({{"dp", 3}}, {.weights = kPrivate}), on({{"fsdp", 2}}),
                        on({{"dp", 2}, {"fsdp", 2}}, {.zero_stage = 2, .weights = kPrivate}),
                        on({{"fsdp", 2}, {"dp", 2}}, {.zero_stage = 2, .weights = kPrivate}),
                        on({{"dp", 2}, {"tp", 2}}),
                        on({{"pp", 2}, {"dp", 2}}, by(Algorithm::kOneForwardOneBackward, 2))}) {
    replicate(c.world(), [&](const Group& group) {
      Rank verified(group, c), plain(group, c);
      for (int batch = 0; batch < 2; ++batch) {
        EXPECT_TRUE(verified.step(batch)) << c.name();
        EXPECT_THAT(verified.model.wrong_gradients(), IsEmpty()) << c.name();
        train(plain.model, batch);
        EXPECT_TRUE(plain.model.step());
      }
      const Named got = named(verified.model.state()), wanted = named(plain.model.state());
      if (group.rank() == 0) expect_same_bits(got, wanted, c.name());
    });
  }
}

// Detection by bit position of a float32: all 32 of 32.
TEST(Verify, FindsAFlippedBitAtEveryPositionAndNamesTheRank) {
  const Case c = on({{"dp", 2}});
  replicate(2, [&](const Group& group) {
    Rank rank(group, c);
    EXPECT_TRUE(rank.step(0));
    const Named before = named(rank.model.state());
    int found = 0;
    for (int bit = 0; bit < 32; ++bit) {
      const int culprit = bit % 2;
      const bool mine = group.rank() == culprit;
      EXPECT_FALSE(rank.step(1, mine ? [bit](at::Tensor& gradient) { flip(gradient, bit); }
                                     : std::function<void(at::Tensor&)>()));
      const auto& wrong = rank.model.wrong_gradients();
      ASSERT_EQ(wrong.size(), 1u) << "bit " << bit;
      EXPECT_THAT(wrong[0].ranks, ElementsAre(culprit)) << "bit " << bit;
      EXPECT_EQ(wrong[0].parameter, rank.how->parameter);
      ++found;
    }
    EXPECT_EQ(found, 32);
    const Named after = named(rank.model.state());
    if (group.rank() == 0) expect_same_bits(after, before, "skipped steps");
    EXPECT_TRUE(rank.step(1));
  });
}

// The gradients of a rank are wrong each time, and alike.
TEST(Verify, AThirdRankDecidesIfARankIsAlwaysWrong) {
  const auto always = [](at::Tensor& gradient) { flip(gradient, 20); };
  const Case three = on({{"dp", 3}}), two = on({{"fsdp", 2}});
  replicate(3, [&](const Group& group) {
    Rank rank(group, three);
    if (group.rank() == 1) rank.how->change = always;
    EXPECT_FALSE(rank.step(0));
    ASSERT_EQ(rank.model.wrong_gradients().size(), 1u);
    EXPECT_THAT(rank.model.wrong_gradients()[0].ranks, ElementsAre(1));
  });
  replicate(2, [&](const Group& group) {
    Rank rank(group, two);
    if (group.rank() == 1) rank.how->change = always;
    EXPECT_FALSE(rank.step(0));
    ASSERT_EQ(rank.model.wrong_gradients().size(), 1u);
    EXPECT_THAT(rank.model.wrong_gradients()[0].ranks, ElementsAre(0, 1));
  });
}

TEST(Verify, RefusesPlansWhoseGradientsCannotBeCompared) {
  const auto refused = [](const Case& c, const Tiny& tiny) {
    std::string why;
    replicate(c.world(), [&](const Group& group) {
      Rank rank(group, c, tiny);
      try {
        rank.step(0);
      } catch (const Error& error) {
        if (group.rank() == 0) why = error.message();
      }
    });
    return why;
  };
  using testing::HasSubstr;
  EXPECT_THAT(refused(on({{"tp", 2}}), {}), HasSubstr("there is one replica"));
  EXPECT_THAT(refused(on({{"dp", 2}}, {.micro_shards = 2}), {}), HasSubstr("micro-shards"));
  EXPECT_THAT(refused(on({{"dp", 2}}), {.experts = 2}), HasSubstr("experts"));
  EXPECT_THAT(refused(on({{"dp", 2}}, {.skip_not_finite = false}), {}),
              HasSubstr("skip_not_finite"));
}

TEST(Verify, RefusesAStepOfSeveralBatches) {
  const Case c = on({{"dp", 2}}, {.accumulate = 2});
  replicate(2, [&](const Group& group) {
    Rank rank(group, c);
    EXPECT_THAT(refusal([&] { rank.step(0); }, Errc::kBadConfig),
                testing::HasSubstr("several batches is not supported; call set_accumulate(1)"));
    rank.model.set_accumulate(1);
    EXPECT_TRUE(rank.step(0));
    EXPECT_THAT(rank.model.wrong_gradients(), IsEmpty());
  });
}

}  // namespace
}  // namespace weft::parallel::internal

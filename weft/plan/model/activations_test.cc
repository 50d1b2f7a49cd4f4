// Compares what a layer keeps with the formulas of Korthikanti et al. 2022 (equations 1, 2 and 4,
// table 2) and with the figures of their section 5.
#include "weft/plan/model/activations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "weft/base/testing/refusal.h"

namespace weft::plan {
namespace activations_test {

using testing::HasSubstr;

std::int64_t published(const LayerShape& layer, int tp, bool split, Kept kept) {
  return activation_bytes(
      layer,
      {.tp = tp, .split_sequence = split, .dropout = true, .kept = kept, .keeping = kPublished});
}

TEST(Activations, OfThePaperMatchItsFormulas) {
  for (const LayerShape& layer :
       {LayerShape{1, 2048, 12288, 96}, LayerShape{4, 2048, 6144, 64}, LayerShape{3, 64, 32, 8}}) {
    const std::int64_t sbh = layer.sequence * layer.batch * layer.width,
                       square = 5 * layer.heads * layer.sequence * layer.sequence * layer.batch;
    EXPECT_EQ(published(layer, 1, false, Kept::kAll), 34 * sbh + square);
    for (const int t : {2, 8}) {
      EXPECT_EQ(published(layer, t, false, Kept::kAll), 10 * sbh + 24 * sbh / t + square / t);
      EXPECT_EQ(published(layer, t, true, Kept::kAll), (34 * sbh + square) / t);
      EXPECT_EQ(published(layer, t, false, Kept::kSelective), 10 * sbh + 24 * sbh / t);
      EXPECT_EQ(published(layer, t, true, Kept::kSelective), 34 * sbh / t);
      EXPECT_EQ(published(layer, t, false, Kept::kInput), 2 * sbh);
    }
  }
}

// "For GPT-3 and MT-NLG the factors 5as/h are 80 and 64": selective recomputation saves 70 % and 65
// % (section 5).
TEST(Activations, OfGpt3AndMtNlgShrinkByThePapersShares) {
  const auto saved = [](const LayerShape& layer) {
    return 1 - static_cast<double>(published(layer, 8, true, Kept::kSelective)) /
                   static_cast<double>(published(layer, 8, true, Kept::kAll));
  };
  EXPECT_NEAR(saved({1, 2048, 12288, 96}), 0.70, 0.005);
  EXPECT_NEAR(saved({1, 2048, 20480, 128}), 0.65, 0.005);
}

// Without dropout: 34 sbh - 2 sbh of masks, times two for float32. Attention keeps no square of the
// sequence, but a sum of four bytes per head and position. Each norm keeps two numbers per
// position.
TEST(Activations, OfOurGptMatchThePapersUpToDocumentedDifferences) {
  const LayerShape layer{2, 128, 64, 4};
  const std::int64_t sb = 128 * 2, sbh = sb * 64, square = 4 * 128 * 128 * 2;
  EXPECT_EQ(activation_bytes(layer, {}), 64 * sbh + 4 * 4 * sb + 16 * sb);
  EXPECT_EQ(activation_bytes(layer, {.kept = Kept::kSelective}), 40 * sbh + 4 * 4 * sb + 16 * sb);
  EXPECT_EQ(activation_bytes(layer, {.dropout = true}),
            72 * sbh + 12 * square + 128 * 128 + 16 * sb);
  EXPECT_EQ(activation_bytes(layer, {.dropout = true, .kept = Kept::kSelective}),
            48 * sbh + 16 * sb);
  EXPECT_EQ(activation_bytes(layer, {.kept = Kept::kInput}), 4 * sbh);
  // SwiGLU keeps four tensors of width 4h instead of two (selective: two instead of one). An
  // RMSNorm keeps one more tensor of width h, but only one number per position.
  const LayerShape gated{
      .batch = 2, .sequence = 128, .width = 64, .heads = 4, .gated = true, .rms = true};
  EXPECT_EQ(activation_bytes(gated, {}), (64 + 32 + 8) * sbh + 4 * 4 * sb + 8 * sb);
  EXPECT_EQ(activation_bytes(gated, {.kept = Kept::kSelective}),
            (40 + 16 + 8) * sbh + 4 * 4 * sb + 8 * sb);
  // The two gathered inputs stay whole, with 4 bytes per element.
  EXPECT_EQ(activation_bytes(layer, {.tp = 2, .split_sequence = true}),
            (64 - 8) * sbh / 2 + 8 * sbh + (4 * 4 * sb + 16 * sb) / 2);
  EXPECT_EQ(activation_bytes(layer, {.cp = 4, .dropout = true}),
            (72 * sbh + 4 * 4 * sb + 16 * sb) / 4);
}

TEST(Activations, RefuseInvalidSizes) {
  const auto refused = [](const LayerShape& layer, const ActivationOptions& options) {
    return refusal([&] { activation_bytes(layer, options); });
  };
  EXPECT_THAT(refused({.batch = 0}, {}), HasSubstr("at least 1"));
  EXPECT_THAT(refused({.width = 8, .heads = 2}, {.tp = 3}), HasSubstr("divide by tp = 3"));
  EXPECT_THAT(refused({.sequence = 3, .width = 8, .heads = 2}, {.tp = 2, .split_sequence = true}),
              HasSubstr("divide by tp = 2"));
  EXPECT_EQ(refused({.sequence = 3, .width = 8, .heads = 2}, {.tp = 2}), "accepted");
}

}  // namespace activations_test
}  // namespace weft::plan

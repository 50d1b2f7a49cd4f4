#include "weft/compress/choose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/compress/measure.h"

namespace weft::compress {
namespace {

using testing::HasSubstr;

std::vector<Candidate> candidates() {
  return {{parse("bf16"), 0.002, 0.5, 0},
          {parse("int8:64"), 0.010, 0.266, 0},
          {parse("powersgd:4"), 0.030, 0.01, 10}};
}

TEST(ChooseCodec, ChoosesNoneOnAFastLink) {
  const auto choice =
      choose({.step = 0.100, .exposed = 0.004, .transfer = 0.030, .latency = 50e-6}, candidates());
  EXPECT_EQ(choice.spec, Spec{});
  EXPECT_EQ(choice.predicted, 0.100);
  EXPECT_THAT(choice.why, HasSubstr("not worth it"));
}

TEST(ChooseCodec, ChoosesTheFastestOnASlowLink) {
  const auto choice =
      choose({.step = 0.500, .exposed = 0.400, .transfer = 0.400, .latency = 100e-6}, candidates());
  EXPECT_EQ(choice.spec, parse("powersgd:4"));
  EXPECT_NEAR(choice.predicted, 0.100 + 0.400 * 0.01 + 0.001 + 0.030, 1e-9);
  EXPECT_THAT(choice.why, HasSubstr("powersgd:4"));
}

TEST(ChooseCodec, PrefersTheSmallerErrorIfTimesAreClose) {
  // bf16: 0.100 + 0.020 + 0.002; int8: 0.100 + 0.01064 + 0.010, 1 % less.
  EXPECT_EQ(
      choose({.step = 0.140, .exposed = 0.040, .transfer = 0.040, .latency = 0}, candidates()).spec,
      parse("bf16"));
}

TEST(ChooseCodec, CountsTheTransferHiddenByBackward) {
  // 80 of 100 ms are hidden, so fewer bytes save at most the 20 ms that are exposed.
  const auto choice =
      choose({.step = 0.120, .exposed = 0.020, .transfer = 0.100, .latency = 0}, candidates());
  EXPECT_EQ(choice.spec, parse("bf16"));
  EXPECT_NEAR(choice.predicted, 0.102, 1e-9);
}

TEST(ChooseCodec, RevertsToNoneIfTheTrialIsNotFaster) {
  const auto tried =
      choose({.step = 0.500, .exposed = 0.400, .transfer = 0.400, .latency = 0}, candidates());
  EXPECT_EQ(confirm(tried, 0.5, 0.2).spec, tried.spec);
  EXPECT_EQ(confirm(tried, 0.5, 0.5).spec, Spec{});
  EXPECT_THAT(confirm(tried, 0.5, 0.6).why, HasSubstr("not used"));
}

TEST(MeasureCodec, CountsTheBytesAndTheTimeOfAllBuffers) {
  const Unit large{.count = 1 << 16, .matrices = {{0, 256, 256}}, .world = 2};
  const Unit small{.count = 1 << 10, .matrices = {{0, 1 << 10, 1}}, .world = 2};
  for (const int copies : {1, 8}) {
    std::vector<Unit> buffers(static_cast<std::size_t>(copies), large);
    buffers.push_back(small);
    const Candidate bf16 = measure(parse("bf16"), buffers),
                    rank4 = measure(parse("powersgd:4"), buffers);
    EXPECT_DOUBLE_EQ(bf16.bytes, 0.5);
    EXPECT_EQ(bf16.more_rounds, 0);
    EXPECT_GT(bf16.code, 0);
    // 4 (256 + 256) of 256 x 256 numbers, and vectors as they are.
    const double numbers = copies * 65536.0 + 1024;
    EXPECT_DOUBLE_EQ(rank4.bytes, (copies * 2048.0 + 1024) / numbers);
    EXPECT_GE(rank4.more_rounds, copies);
  }
  EXPECT_EQ(measure(parse("bf16"), {}).code, 0);
}

TEST(ChooseCodec, HasValidCandidates) {
  for (const Spec& spec : standard_candidates()) EXPECT_EQ(parse(to_string(spec)), spec);
}

}  // namespace
}  // namespace weft::compress

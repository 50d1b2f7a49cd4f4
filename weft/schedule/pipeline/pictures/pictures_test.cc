#include "weft/schedule/pipeline/pictures/pictures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "weft/base/error.h"

namespace weft::schedule::pipeline {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

int occurrences(const std::string& text, const std::string& what) {
  int count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
    ++count;
  return count;
}

// Narayanan and others 2021, by hand: two ranks, three micro-batches.
TEST(PipelineText, ShowsATimeLineForEachRank) {
  EXPECT_THAT(render_text({Algorithm::kOneForwardOneBackward, 2, 3}),
              HasSubstr("time     0              5              10\n"
                        "rank 0   F0 F1 .  .  B0--- F2 B1--- .  B2---\n"
                        "rank 1   .  F0 B0--- F1 B1--- F2 B2--- .  .\n"));
}

TEST(PipelineText, ShowsIdleTimeMemoryAndMessages) {
  const std::string text = render_text({Algorithm::kOneForwardOneBackward, 4, 8});
  EXPECT_THAT(text, HasSubstr("4 ranks, 8 micro-batches; 27.3 % idle of 33, bubble 9 of an "
                              "iteration of 33; at most 4 held; 48 messages"));
  EXPECT_THAT(text, HasSubstr("rank 3   27.3 % idle, holds 1\n"));
}

TEST(PipelineText, NamesTheStageIfARankHasSeveralAndEachPartOfABackward) {
  const std::string text = render_text({Algorithm::kZeroBubbleV, 2, 3, 2});
  EXPECT_THAT(text, HasSubstr("F0.3 I0.3 W0.3"));
  EXPECT_THAT(text, HasSubstr("I backward of the input, W of the weights"));
}

TEST(PipelineText, SplitsLongTimeLines) {
  const std::string text = render_text({Algorithm::kGPipe, 2, 32});
  EXPECT_EQ(occurrences(text, "\ntime "), 4) << "99 units in columns of four characters";
  EXPECT_THAT(text, Not(HasSubstr(" \n"))) << "trailing blanks";
}

TEST(PipelineText, StretchesActionsByTheirCosts) {
  EXPECT_THAT(render_text({Algorithm::kGPipe, 1, 1, 1, {0.5, 1, 1}}),
              HasSubstr("rank 0   F0 B0---------\n"));
}

TEST(PipelineSvg, DrawsEveryActionOnceAndContainsItsDescription) {
  const std::string svg = render_svg({Algorithm::kZeroBubbleH1, 4, 8});
  EXPECT_EQ(occurrences(svg, "<rect class=\"box"), 3 * 4 * 8 + 3) << "and three in the legend";
  EXPECT_THAT(svg, HasSubstr("<title id=\"t\">Zero bubble H1</title>"));
  EXPECT_THAT(svg, HasSubstr("11.1 % idle of 27"));
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme:dark"));
}

TEST(PipelineSvg, HasAColorForEachStageOfARank) {
  const std::string svg = render_svg({Algorithm::kInterleaved, 2, 4, 3});
  for (const char* rule : {".bF0{", ".bF1{", ".bF2{", ".bB0{", ".bB2{"})
    EXPECT_EQ(occurrences(svg, rule), 1) << rule;
  EXPECT_THAT(svg, HasSubstr(">B5</text>"));
}

TEST(PipelinePictures, RefuseWhatIsTooLargeToShow) {
  EXPECT_THROW(render_text({Algorithm::kGPipe, 65, 8}), Error);
  EXPECT_THROW(render_svg({Algorithm::kGPipe, 64, 200}), Error);
  EXPECT_THROW(render_text({Algorithm::kGPipe, 2, 8, 1, {1, 1e5, 1}}), Error);
}

}  // namespace
}  // namespace weft::schedule::pipeline

#include "weft/compress/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/error.h"

namespace weft::compress {
namespace {

using testing::HasSubstr;

std::string complaint(const std::string& text) {
  try {
    parse(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    return error.message();
  }
  return "no error";
}

TEST(CodecSpec, ReadsAmountsAndOptions) {
  EXPECT_EQ(parse("none"), Spec{});
  EXPECT_EQ(parse("int8:128"),
            (Spec{.kind = Kind::kInt8, .amount = 128, .memory = Memory::kFeedback}));
  EXPECT_EQ(parse("topk:0.05,warmup=20"),
            (Spec{.kind = Kind::kTopK, .amount = 0.05, .memory = Memory::kFeedback, .warmup = 20}));
  EXPECT_EQ(parse("powersgd"),
            (Spec{.kind = Kind::kPowerSgd, .amount = 4, .memory = Memory::kFeedback}));
  EXPECT_EQ(parse("int4,delta"),
            (Spec{.kind = Kind::kInt4, .amount = 64, .memory = Memory::kDelta}));
  EXPECT_EQ(parse("topk,momentum=before"), (Spec{.kind = Kind::kTopK,
                                                 .amount = 0.01,
                                                 .memory = Memory::kFeedback,
                                                 .momentum_before = true}));
  EXPECT_EQ(parse("randomk:0.1,ef=off,seed=7"),
            (Spec{.kind = Kind::kRandomK, .amount = 0.1, .seed = 7}));
}

TEST(CodecSpec, HasErrorFeedbackForBiasedCodecs) {
  for (const char* biased :
       {"int8", "int4", "sign", "topk", "randomk", "threshold:1", "powersgd"}) {
    EXPECT_EQ(parse(biased).memory, Memory::kFeedback) << biased;
  }
  for (const char* plain : {"none", "bf16", "f16", "int8,stochastic"})
    EXPECT_EQ(parse(plain).memory, Memory::kNone) << plain;
  EXPECT_EQ(parse("int8,ef=on,stochastic").memory, Memory::kFeedback);
}

TEST(CodecSpec, AppliesMomentumBeforeSignAndRandomKAndOnRequest) {
  for (const char* before : {"sign", "sign,ef=on", "randomk", "topk,momentum=before"})
    EXPECT_TRUE(parse(before).momentum_before) << before;
  for (const char* after : {"none", "bf16", "int8", "topk", "powersgd", "sign,ef=off", "sign,delta",
                            "sign,momentum=after", "randomk,ef=off", "randomk,momentum=after"})
    EXPECT_FALSE(parse(after).momentum_before) << after;
}

TEST(CodecSpec, IsWrittenAsItIsRead) {
  for (const char* text : {"none", "auto", "bf16", "f16,ef=on", "int8:64,stochastic",
                           "int4:32,delta,warmup=3", "sign", "topk:0.001,ef=off", "randomk:0.25",
                           "threshold:0.5,seed=9", "powersgd:2,warmup=100", "sign,momentum=after",
                           "topk,momentum=before", "randomk,ef=off", "randomk,momentum=after"}) {
    EXPECT_EQ(parse(to_string(parse(text))), parse(text))
        << text << " -> " << to_string(parse(text));
  }
}

TEST(CodecSpec, ReportsErrors) {
  EXPECT_THAT(complaint("powersdg:4"), HasSubstr("did you mean \"powersgd\"?"));
  EXPECT_THAT(complaint("gzip"), HasSubstr("the codecs are none, bf16, f16, int8"));
  EXPECT_THAT(complaint(""), HasSubstr("there is no codec \"\""));
  EXPECT_THAT(complaint("bf16:8"), HasSubstr("bf16 takes no number"));
  EXPECT_THAT(complaint("int8:12"), HasSubstr("multiple of 8"));
  EXPECT_THAT(complaint("int8:64.5"), HasSubstr("a whole number from 8 to"));
  EXPECT_THAT(complaint("topk:2"), HasSubstr("share of the numbers: a number from"));
  EXPECT_THAT(complaint("topk:nan"), HasSubstr("\"nan\" is not the share"));
  EXPECT_THAT(complaint("powersgd:"), HasSubstr("\"\" is not the rank"));
  EXPECT_THAT(complaint("threshold"), HasSubstr("threshold needs the magnitude"));
  EXPECT_THAT(complaint("int8,"), HasSubstr("\"\" is not an option"));
  EXPECT_THAT(complaint("int8,warmup=-1"), HasSubstr("\"warmup=-1\" is not an option"));
  EXPECT_THAT(complaint("int8,ef=maybe"), HasSubstr("\"ef=maybe\" is not an option"));
  EXPECT_THAT(complaint("int8,ef=on,delta"), HasSubstr("one of ef=on, ef=off and delta"));
  EXPECT_THAT(complaint("sign,momentum=0.9"), HasSubstr("\"momentum=0.9\" is not an option"));
  EXPECT_THAT(complaint("bf16,momentum=before"), HasSubstr("needs error feedback"));
  EXPECT_THAT(complaint("topk,delta,momentum=before"), HasSubstr("needs error feedback"));
  EXPECT_THAT(complaint("sign,stochastic"), HasSubstr("only int8 and int4"));
  EXPECT_THAT(complaint("none,warmup=3"), HasSubstr("none takes no options"));
  EXPECT_THAT(complaint("auto,warmup=3"), HasSubstr("auto takes no options"));
}

}  // namespace
}  // namespace weft::compress

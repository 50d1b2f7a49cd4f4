#include "weft/observe/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "weft/base/error.h"
#include "weft/base/testing/decimal_comma.h"

namespace weft::observe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Trace, RecordsOnlyTheSpansThatRunWhileItIsOn) {
  Trace trace;
  { const TraceScope scope("step", "no thread records yet"); }
  const Trace::Use here(&trace, "main");
  { const TraceScope scope("step", "not on"); }
  trace.record(true);
  {
    const TraceScope outer("step", "outer");
    const TraceScope inner("comm", "inner", 64);
  }
  trace.record(false);
  const auto recorded = trace.take();
  ASSERT_EQ(recorded.spans.size(), 2u);
  EXPECT_EQ(recorded.spans[0].name, "inner");
  EXPECT_EQ(recorded.spans[0].bytes, 64);
  EXPECT_LE(recorded.spans[1].begin, recorded.spans[0].begin);
  EXPECT_GE(recorded.spans[1].end, recorded.spans[0].end);
  EXPECT_TRUE(trace.take().spans.empty());
}

TEST(Trace, EachThreadHasItsOwnLineAndAScopeRestoresThePreviousOne) {
  Trace trace;
  trace.record(true);
  const Trace::Use here(&trace, "main");
  std::thread([&] {
    EXPECT_EQ(Trace::current(), nullptr);
    const Trace::Use there(&trace, "lane");
    const TraceScope scope("comm", "all_reduce");
  }).join();
  {
    const Trace::Use elsewhere(nullptr, "nowhere");
    const TraceScope scope("step", "lost");
  }
  { const TraceScope scope("step", "forward"); }
  const auto recorded = trace.take();
  EXPECT_THAT(recorded.threads, ElementsAre("main", "lane"));
  ASSERT_EQ(recorded.spans.size(), 2u);
  EXPECT_EQ(recorded.spans[0].thread, 1);
  EXPECT_EQ(recorded.spans[1].thread, 0);
}

TEST(Trace, TheFastestExchangeDeterminesTheClockOffset) {
  // The peer's clock is 1000 ahead. The first exchange was delayed on the way to the peer, the last
  // one on the way back.
  EXPECT_EQ(clock_offset({{0, 1090, 100}, {200, 1205, 210}, {300, 1310, 400}}), 1000);
  EXPECT_EQ(clock_offset({{1000, 505, 1010}}), -500);
  EXPECT_THROW(clock_offset({}), Error);
}

TEST(Trace, WritesTimesWithADecimalPointInEachLocale) {
  Trace::Recorded recorded;
  recorded.threads = {"main"};
  recorded.spans.push_back({"step", "forward", 0, 5'000'123, 7'000'623, -1});
  const DecimalComma locale;
  const std::string text = trace_events(recorded, {.rank = 0, .origin = 4'000'000});
  EXPECT_THAT(text, HasSubstr("\"ts\":1000.123,\"dur\":2000.500"));
}

TEST(Trace, WritesChromesFormatWithRankZerosClock) {
  Trace::Recorded recorded;
  recorded.threads = {"main"};
  recorded.spans = {{"step", "for\"ward", 0, 5'000'000, 7'000'500, -1},
                    {"comm", "all_reduce", 0, 6'000'000, 6'500'000, 4096}};
  const auto text = chrome_trace(
      {trace_events(recorded, {.rank = 0, .origin = 4'000'000}),
       trace_events(recorded, {.rank = 1, .label = "node1", .offset = -500, .origin = 4'000'000})});
  const auto json = nlohmann::json::parse(text);
  const auto& events = json["traceEvents"];
  ASSERT_EQ(events.size(), 8u);
  EXPECT_EQ(events[0]["args"]["name"], "rank 0");
  EXPECT_EQ(events[1]["args"]["name"], "main");
  EXPECT_EQ(events[2]["name"], "for\"ward");
  EXPECT_DOUBLE_EQ(events[2]["ts"], 1000.0);
  EXPECT_DOUBLE_EQ(events[2]["dur"], 2000.5);
  EXPECT_EQ(events[3]["args"]["bytes"], 4096);
  EXPECT_EQ(events[4]["args"]["name"], "rank 1 (node1)");
  EXPECT_DOUBLE_EQ(events[6]["ts"], 999.5);
  EXPECT_EQ(events[6]["pid"], 1);
}

TEST(Trace, CountsTimeOnceIfSeveralThreadsAreBusy) {
  const std::vector<Span> spans = {{"comm", "a", 1, 0, 10},  {"comm", "b", 2, 5, 20},
                                   {"comm", "c", 1, 30, 40}, {"wait", "x", 0, 2, 6},
                                   {"wait", "y", 0, 8, 12},  {"wait", "w", 0, 35, 60},
                                   {"data", "z", 3, 0, 100}};
  EXPECT_EQ(busy(spans, "comm"), 30);
  EXPECT_EQ(busy_in_both(spans, "comm", "wait"), 4 + 4 + 5);
  EXPECT_EQ(busy(spans, "none"), 0);
}

}  // namespace
}  // namespace weft::observe

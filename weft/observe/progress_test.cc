#include "weft/observe/progress.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/base/testing/variables.h"

namespace weft::observe {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

TestVariables::Values plain_environment() {
  return {{"TERM", "xterm"},     {"COLUMNS", {}},  {"NO_COLOR", {}}, {"FORCE_COLOR", {}},
          {"LC_ALL", "C.UTF-8"}, {"LC_CTYPE", {}}, {"LANG", {}}};
}

TestVariables::Values plain_environment_with(const std::string& name,
                                             const std::optional<std::string>& value) {
  auto all = plain_environment();
  all[name] = value;
  return all;
}

// A terminal of 40 columns. written() returns the text written to terminal().
class Pty {
 public:
  Pty() : master_(::posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC)) {
    if (!master_ || ::grantpt(master_.get()) != 0 || ::unlockpt(master_.get()) != 0) return;
    terminal_ = UniqueFd(::open(::ptsname(master_.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
    const winsize size{.ws_row = 24, .ws_col = 40, .ws_xpixel = 0, .ws_ypixel = 0};
    ::ioctl(terminal_.get(), TIOCSWINSZ, &size);
  }

  int terminal() const { return terminal_.get(); }
  std::string written() {
    std::string out;
    char chunk[4096];
    for (ssize_t got; (got = ::read(master_.get(), chunk, sizeof chunk)) > 0;)
      out.append(chunk, static_cast<std::size_t>(got));
    return out;
  }

 private:
  UniqueFd master_;
  UniqueFd terminal_;
};

// A file in memory that stands for a pipe.
class Sink {
 public:
  Sink() : fd_(::memfd_create("sink", MFD_CLOEXEC)) {}
  int fd() const { return fd_.get(); }
  std::string text() const {
    std::string out(static_cast<std::size_t>(::lseek(fd_.get(), 0, SEEK_END)), '\0');
    return ::pread(fd_.get(), out.data(), out.size(), 0) == static_cast<ssize_t>(out.size()) ? out
                                                                                             : "";
  }

 private:
  UniqueFd fd_;
};

int width(const std::string& text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

ProgressView view() {
  return {.task = "epoch 1",
          .done = 45,
          .total = 100,
          .seconds = 12.5,
          .first = 0,
          .values = {{"loss", 0.32}}};
}

TEST(ProgressBar, LooksLikeTqdm) {
  const std::string frame = "epoch 1:  45%|| 45/100 [00:12<00:15, 3.6it/s, loss=0.32]";
  const int columns = width(frame) + 10;
  EXPECT_EQ(render_bar(view(), columns, true),
            "epoch 1:  45%|████▌     | 45/100 [00:12<00:15, 3.6it/s, loss=0.32]");
  EXPECT_EQ(render_bar(view(), columns, false),
            "epoch 1:  45%|####      | 45/100 [00:12<00:15, 3.6it/s, loss=0.32]");
}

TEST(ProgressBar, OmitsValuesThenTheRateThenTheBarThenTheClockOnANarrowTerminal) {
  EXPECT_EQ(render_bar(view(), 50, true), "epoch 1:  45%|██▎  | 45/100 [00:12<00:15, 3.6it/s]");
  EXPECT_EQ(render_bar(view(), 40, true), "epoch 1:  45%|█▊  | 45/100 [00:12<00:15]");
  EXPECT_EQ(render_bar(view(), 35, true), "epoch 1: 45% 45/100 [00:12<00:15]");
  EXPECT_EQ(render_bar(view(), 30, true), "epoch 1: 45% 45/100");
  EXPECT_EQ(render_bar(view(), 5, true), "epoch");
  for (int columns = 1; columns < 100; ++columns)
    EXPECT_LE(width(render_bar(view(), columns, true)), columns);
}

TEST(ProgressBar, DrawsZeroStepsAllStepsMoreThanAllStepsAndAnUnknownTotal) {
  ProgressView odd = view();
  odd.values.clear();
  odd.done = 0;
  EXPECT_EQ(render_bar(odd, 46, true), "epoch 1:   0%|        | 0/100 [00:12<?, ?it/s]");
  odd.done = 100;
  EXPECT_EQ(render_bar(odd, 49, true), "epoch 1: 100%|█████| 100/100 [00:12<00:00, 8it/s]");
  odd.done = 120;
  EXPECT_THAT(render_bar(odd, 80, true), HasSubstr("100%|"));
  odd.total = 0;
  EXPECT_EQ(render_bar(odd, 80, true), "epoch 1: 120it [00:12, 9.6it/s]");
  EXPECT_EQ(
      render_line({.task = "", .done = 5, .total = 10, .seconds = 50, .first = 0, .values = {}}),
      "5/10 (50%) 00:50<00:50 10s/it");
}

TEST(RenderBar, ShowsTheShareOfTheRunAndTheTimeUntilItsEnd) {
  ProgressView at = view();
  at.task = "epoch 1/9";
  at.run = {.done = 45, .total = 900, .first = 0, .seconds = 15};
  EXPECT_EQ(render_bar(at, 83, false),
            "epoch 1/9:  45%|####      | 45/100 [00:12<00:15, run 5% <04:45, 3.6it/s, loss=0.32]");
  EXPECT_EQ(render_bar(at, 57, false), "epoch 1/9:  45%|#   | 45/100 [00:12<00:15, run 5% <04:45]");
  EXPECT_EQ(render_line(at), "epoch 1/9: 45/100 (45%) 00:12<00:15 run 5% <04:45 3.6it/s loss=0.32");
  EXPECT_THAT(render_json(at), HasSubstr(",\"run_done\":45,\"run_total\":900,\"run_left_s\":285,"));
  at.run.first = 45;  // resumed, and no step is done yet
  EXPECT_THAT(render_line(at), HasSubstr(" run 5% <? "));
  EXPECT_THAT(render_json(at), HasSubstr("\"run_left_s\":null"));
  at.run.total = 100;  // one epoch
  EXPECT_THAT(render_line(at), Not(HasSubstr("run")));
}

TEST(RenderBar, ShowsTheTimeUntilTheEndOfARunThatEndsBeforeItsTask) {
  ProgressView at = view();
  at.task = "epoch 1/5";
  at.total = 938;
  at.run = {.done = 45, .total = 100, .first = 0, .seconds = 15};
  EXPECT_EQ(render_line(at), "epoch 1/5: 45/938 (4%) 00:12<00:15 run 45% <00:18 3.6it/s loss=0.32");
  EXPECT_THAT(render_bar(at, 83, false), HasSubstr("| 45/938 [00:12<00:15, run 45% <00:18, "));
  EXPECT_THAT(render_json(at), HasSubstr(",\"run_done\":45,\"run_total\":100,\"run_left_s\":18,"));
  at.done = at.run.done = 100;
  EXPECT_THAT(render_line(at), HasSubstr("100/938 (10%) 00:12<00:00 run 100% <00:00 "));
}

TEST(ProgressBar, ShowsPercentagesThatFractionsOfTwoDoNotHave) {
  ProgressView at = view();
  at.run = {.done = 0, .total = 100'000, .first = 0, .seconds = 15};
  for (int percent = 0; percent <= 100; ++percent) {
    at.done = percent;
    at.run.done = 1000 * percent;
    const std::string text = std::to_string(percent) + "%";
    EXPECT_THAT(render_line(at), HasSubstr("(" + text + ") "));
    EXPECT_THAT(render_line(at), HasSubstr(" run " + text + " <"));
    EXPECT_THAT(render_bar(at, 83, true), HasSubstr(" " + text + "|"));
  }
}

TEST(ProgressBar, ComputesTheSpeedOfAResumedTaskFromItsFirstStep) {
  EXPECT_EQ(
      render_line({.task = "a", .done = 90, .total = 100, .seconds = 5, .first = 80, .values = {}}),
      "a: 90/100 (90%) 00:05<00:05 2it/s");
}

TEST(Progress, RedrawsATerminalAtMostTenTimesASecondWithinItsColumns) {
  const TestVariables environment(plain_environment_with("NO_COLOR", "1"));
  Pty pty;
  ASSERT_GE(pty.terminal(), 0);
  Progress::Clock::time_point now{};
  Progress progress({.fd = pty.terminal(), .now = [&] { return now; }});
  EXPECT_EQ(progress.mode(), ProgressMode::kBar);
  progress.start("epoch 1", 1000);
  for (int step = 1; step <= 1000; ++step) {
    now += 1ms;
    progress.update(step, {{"loss", 1.0 / step}});
  }
  progress.finish();
  const std::string written = pty.written();
  EXPECT_LE(std::count(written.begin(), written.end(), '\r'),
            13);  // 11 redraws in one second, the last redraw, and the newline
  EXPECT_GE(std::count(written.begin(), written.end(), '\r'), 10);
  EXPECT_EQ(written.find('\x1b'), std::string::npos);
  EXPECT_THAT(written, testing::EndsWith("\repoch 1: 100% 1000/1000 [00:01<00:00]\r\n"));
  for (std::size_t at = 0; at < written.size();) {
    const std::size_t end = std::min(written.find('\r', at), written.size());
    EXPECT_LT(width(written.substr(at, end - at)), 40);
    at = end + 1;
  }
}

TEST(Progress, AShorterBarErasesTheLongerOne) {
  const TestVariables environment(plain_environment_with("NO_COLOR", "1"));
  Pty pty;
  Progress::Clock::time_point now{};
  Progress progress({.fd = pty.terminal(), .now = [&] { return now; }});
  progress.start("a", 0);
  now += 1s;
  progress.update(1, {{"loss", 0.123}});
  now += 1s;
  progress.update(2, {{"l", 1}});
  EXPECT_THAT(pty.written(), testing::EndsWith("\ra: 1it [00:01, 1it/s, loss=0.123]\ra: 2it "
                                               "[00:02, 1it/s, l=1]       "));
}

TEST(Progress, ObeysColumnsColorAndDumbTerminals) {
  Pty pty;
  {
    const TestVariables environment(plain_environment());
    EXPECT_TRUE(terminal_traits(pty.terminal()).is_terminal);
    EXPECT_TRUE(terminal_traits(pty.terminal()).color);
    EXPECT_TRUE(terminal_traits(pty.terminal()).unicode);
    EXPECT_EQ(terminal_traits(pty.terminal()).columns, 40);
  }
  const auto traits_with = [&](const char* name, const std::optional<std::string>& value) {
    const TestVariables environment(plain_environment_with(name, value));
    return terminal_traits(pty.terminal());
  };
  EXPECT_EQ(traits_with("COLUMNS", "66").columns, 66);
  EXPECT_EQ(traits_with("COLUMNS", "junk").columns, 40);
  EXPECT_FALSE(traits_with("NO_COLOR", "1").color);
  EXPECT_FALSE(traits_with("FORCE_COLOR", "0").color);
  EXPECT_FALSE(traits_with("TERM", "dumb").is_terminal);
  EXPECT_FALSE(traits_with("TERM", std::nullopt).is_terminal);
  EXPECT_FALSE(traits_with("LC_ALL", "C").unicode);
  const TestVariables environment(plain_environment_with("FORCE_COLOR", "1"));
  EXPECT_TRUE(terminal_traits(Sink().fd()).color);
}

TEST(Progress, ColorsTheBarOnlyIfColorIsEnabled) {
  const TestVariables environment(plain_environment());
  Pty pty;
  Progress progress({.fd = pty.terminal()});
  progress.start("a", 10);
  EXPECT_THAT(pty.written(), testing::StartsWith("\r\x1b[32ma:"));
}

TEST(Progress, WritesPlainLinesEveryTenSecondsAndAtTheEndWithoutATerminal) {
  const Sink sink;
  Progress::Clock::time_point now{};
  Progress progress({.fd = sink.fd(), .now = [&] { return now; }});
  EXPECT_EQ(progress.mode(), ProgressMode::kLines);
  progress.start("epoch 1\r\x1b[2J", 25);
  for (int step = 1; step <= 25; ++step) {
    now += 1s;
    progress.update(step, {{"loss", 0.5}});
  }
  progress.start("epoch 2", 25);  // ends epoch 1
  EXPECT_EQ(sink.text(),
            "epoch 1  [2J: 10/25 (40%) 00:10<00:15 1it/s loss=0.5\n"
            "epoch 1  [2J: 20/25 (80%) 00:20<00:05 1it/s loss=0.5\n"
            "epoch 1  [2J: 25/25 (100%) 00:25<00:00 1it/s loss=0.5\n");
}

TEST(Progress, WritesJsonLinesOrNothingDependingOnItsMode) {
  const Sink sink;
  Progress::Clock::time_point now{};
  {
    Progress progress({.mode = ProgressMode::kJson, .fd = sink.fd(), .now = [&] { return now; }});
    progress.start("epoch \"1\"", 2);
    now += 1500ms;
    progress.update(2, {{"loss", 0.5}});
  }
  const std::string expected =
      "{\"event\":\"progress\",\"task\":\"epoch "
      "\\\"1\\\"\",\"done\":2,\"total\":2,\"seconds\":"
      "1.5,\"values\":{\"loss\":0.5}}\n";
  EXPECT_EQ(sink.text(), expected);
  for (const auto& silent : {Progress::Options{.mode = ProgressMode::kNone},
                             Progress::Options{.mode = ProgressMode::kBar, .rank = 1}}) {
    auto options = silent;
    options.fd = sink.fd();
    Progress progress(options);
    progress.start("a", 2);
    progress.update(2);
    progress.finish();
  }
  EXPECT_EQ(sink.text(), expected);
}

TEST(Progress, ShowsTheNewShareOfARunWhoseNumberOfStepsChanges) {
  const Sink sink;
  Progress::Clock::time_point now{};
  Progress progress({.fd = sink.fd(), .now = [&] { return now; }});
  progress.start_run(40, 0);
  progress.start("epoch 1", 20);
  now += 10s;
  progress.update(10);
  progress.change_run(100);
  now += 10s;
  progress.update(20);
  progress.finish();
  EXPECT_EQ(sink.text(),
            "epoch 1: 10/20 (50%) 00:10<00:10 run 25% <00:30 1it/s\n"
            "epoch 1: 20/20 (100%) 00:20<00:00 run 20% <01:20 1it/s\n"
            "epoch 1: 20/20 (100%) 00:20<00:00 run 20% <01:20 1it/s\n");
}

TEST(Progress, LogLinesAppearAboveTheBar) {
  const TestVariables environment(plain_environment_with("NO_COLOR", "1"));
  testing::internal::CaptureStderr();
  {
    Progress progress({.mode = ProgressMode::kBar});
    progress.start("a", 0);
    log_info("hello");
    progress.finish();
    log_info("after");
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "\ra: 0it [00:00, ?it/s]\r" + std::string(21, ' ') +
                "\rhello\n\ra: 0it [00:00, ?it/s]\ra: 0it [00:00, ?it/s]\nafter\n");
}

TEST(Progress, ParsesTheNamesOfItsModes) {
  EXPECT_EQ(parse_progress_mode("lines"), ProgressMode::kLines);
  try {
    parse_progress_mode("bars");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "unknown progress mode 'bars'; use auto, bar, lines, json or none");
  }
}

}  // namespace
}  // namespace weft::observe

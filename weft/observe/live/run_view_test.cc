#include "weft/observe/live/run_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"
#include "weft/observe/live/address.h"
#include "weft/observe/run/metrics.h"

namespace weft::observe {
namespace run_view_test {

using namespace std::chrono_literals;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(PrometheusText, HasTypesHelpLabelsAndBaseUnits) {
  RunInfo run;
  run.name = "a \"b\"";
  run.running = true;
  run.step = 12;
  run.epoch = 0;
  const MetricsSeries series = {{"loss", {{11, 0.75}, {12, 0.5}}},
                                {"sent_mb", {{12, 2}}},
                                {"forward_ms", {{12, 250}}},
                                {"top5 \"a\"", {{12, 1}}},
                                {"slowest_over_median", {{12, 1}}}};
  const RankState ranks[] = {{.memory_bytes = 1000}, {.memory_bytes = 2000, .sent_bytes = 4096}};
  const std::string text = prometheus_text(run, series, ranks_json(12, ranks));
  for (const char* line :
       {"# TYPE weft_train_step gauge\nweft_train_step 12\n",
        "# TYPE weft_train_completed_epochs gauge\nweft_train_completed_epochs 0\n",
        "# HELP weft_train_loss ", "# TYPE weft_train_loss gauge\nweft_train_loss 0.5\n",
        "weft_run_info{run=\"a \\\"b\\\"\"} 1\n", "weft_run_running 1\n",
        "weft_communication_step_sent_bytes 2000000\n",
        "weft_train_phase_seconds{phase=\"forward\"} 0.25\n",
        "weft_own_metric{name=\"top5 \\\"a\\\"\"} 1\n", "weft_rank_memory_bytes{rank=\"1\"} 2000\n",
        "weft_communication_bytes_total{rank=\"1\",path=\"messages\"} 4096\n"})
    EXPECT_THAT(text, HasSubstr(line));
  EXPECT_THAT(text, Not(HasSubstr("slowest_over_median")));
  EXPECT_THAT(prometheus_text(run, {}, "{\"ranks\":[{\"rank\":0},3,{}]}"), HasSubstr("weft_run"));
}

TEST(RunView, ReadsTheFolderAtMostOnceASecond) {
  const TempDir dir;
  RunView::Clock::time_point now{};
  RunView view([&] { return now; });
  EXPECT_FALSE(view.json());
  EXPECT_THAT(view.metrics(), HasSubstr("weft_run_running 0\n"));
  view.follow(dir.path());
  EXPECT_FALSE(view.json());
  write_file_atomic(dir / "config.toml", "[train]\nbatch = 64\n");
  EXPECT_FALSE(view.json());
  now += 1s;
  EXPECT_THAT(view.json().value(), HasSubstr("\"train.batch\":\"64\""));
  write_file_atomic(dir / "metrics.jsonl", "{\"step\":3,\"epoch\":0,\"loss\":0.25}\n");
  EXPECT_THAT(view.metrics(), HasSubstr("weft_train_step 0\n"));
  now += 1s;
  EXPECT_THAT(view.metrics(), HasSubstr("weft_train_step 3\n"));
  EXPECT_THAT(view.json().value(), HasSubstr("\"loss\":[[3.0,0.25]]"));
}

TEST(RunView, ShowsALossThatIsNotFiniteAsNaN) {
  const TempDir dir;
  RunView view([] { return RunView::Clock::time_point{}; });
  view.follow(dir.path());
  write_file_atomic(dir / "config.toml", "[train]\nbatch = 64\n");
  write_file_atomic(dir / "metrics.jsonl",
                    "{\"step\":3,\"epoch\":0,\"loss\":0.25}\n"
                    "{\"step\":4,\"epoch\":0,\"loss\":null}\n");
  EXPECT_THAT(view.metrics(), ContainsRegex("weft_train_loss [Nn]a[Nn]"));
}

TEST(HttpAddress, IsAHostAndAPort) {
  EXPECT_EQ(parse_http_address("127.0.0.1:0").url(), "http://127.0.0.1:0/");
  EXPECT_EQ(parse_http_address("[::1]:8080").url(), "http://[::1]:8080/");
  EXPECT_TRUE(parse_http_address("localhost:1").is_loopback());
  EXPECT_FALSE(parse_http_address("0.0.0.0:1").is_loopback());
  for (const char* text : {"", "8080", ":8080", "a:", "a:b", "a:-1", "a:65536", "::1:80", "a:1x"})
    expect_refused([&] { parse_http_address(text); }, Errc::kInvalidArgument, "--http");
}

}  // namespace run_view_test
}  // namespace weft::observe

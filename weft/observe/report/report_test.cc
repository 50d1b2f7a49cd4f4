#include "weft/observe/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"
#include "weft/observe/report/environment.h"

namespace weft::observe {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Folder {
  TempDir dir;
  std::string run(const std::string& name, const std::string& metrics,
                  const std::string& config = "[train]\nbatch = 64\n") const {
    make_directories(dir / name);
    write_file_atomic(dir / (name + "/config.toml"), config);
    write_file_atomic(dir / (name + "/metrics.jsonl"), metrics);
    return dir / name;
  }
};

nlohmann::json data_of(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const auto begin = page.find(open) + open.size();
  return nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

TEST(Report, HoldsTheMetricsTheConfigurationAndTheEnvironmentOfARun) {
  const Folder folder;
  const auto run = folder.run("a",
                              "{\"step\":1,\"epoch\":0,\"loss\":2.0,\"forward_ms\":5}\n{\"step\":2,"
                              "\"epoch\":0,\"loss\":null,\"forward_ms\":7}\n"
                              "{\"step\":3,\"epoch\":0,\"loss\":1.0,\"forward_ms\":6}\n{\"step\":3,"
                              "\"epoch\":0,\"accuracy\":0.5}\n{\"step\":4,\"ep");
  write_file_atomic(run + "/environment.json", environment_json({{"ranks", "2"}}));
  const auto data = data_of(report_html({run}))["runs"][0];
  EXPECT_EQ(data["name"], "a");
  EXPECT_EQ(data["config"]["train.batch"], "64");
  EXPECT_EQ(data["environment"]["ranks"], "2");
  EXPECT_GT(data["environment"]["processor"].get<std::string>().size(), 0u);
  EXPECT_EQ(data["series"]["loss"], nlohmann::json::parse("[[1.0, 2.0], [2.0, null], [3.0, 1.0]]"));
  EXPECT_EQ(data["median"]["forward_ms"], 6.0);
  EXPECT_EQ(data["last"]["accuracy"], 0.5);
  EXPECT_EQ(data["steps"], 3.0);
}

TEST(Environment, KeepsTheStartTimeAndHasTheRanksOfNow) {
  const TempDir dir;
  const std::string file = dir / "environment.json";
  const auto written = [&](const char* ranks) {
    write_environment(file, {{"ranks", ranks}});
    return nlohmann::json::parse(read_file(file, 1 << 16));
  };
  EXPECT_EQ(written("4")["ranks"], "4");
  auto first = written("4");
  first["started"] = "2026-01-31 23:59:59";
  write_file_atomic(file, first.dump());
  EXPECT_EQ(written("2")["started"], "2026-01-31 23:59:59");
  EXPECT_EQ(written("2")["ranks"], "2");
  write_file_atomic(file, "{\"started\": ");
  EXPECT_EQ(written("2")["ranks"], "2") << "after a file that is damaged";
}

TEST(Report, HasNullForALossThatIsNotFinite) {
  const Folder folder;
  const auto data = data_of(report_html(
      {folder.run("a", "{\"step\":1,\"loss\":2.0}\n{\"step\":2,\"loss\":null}\n")}))["runs"][0];
  EXPECT_TRUE(data["last"]["loss"].is_null());
  EXPECT_EQ(data["median"]["loss"], 2.0);
  EXPECT_EQ(data["steps"], 2.0);
}

TEST(Report, AveragesALongSeriesDownToAThousandPoints) {
  const Folder folder;
  std::string metrics;
  for (int step = 1; step <= 5000; ++step)
    metrics +=
        "{\"step\":" + std::to_string(step) + ",\"loss\":" + std::to_string(step % 5) + "}\n";
  const auto loss = data_of(report_html({folder.run("a", metrics)}))["runs"][0]["series"]["loss"];
  ASSERT_EQ(loss.size(), 1000u);
  for (const auto& point : loss) EXPECT_DOUBLE_EQ(point[1], 2.0);  // the mean of 0 to 4
  EXPECT_EQ(loss[0][0], 3.0);
}

TEST(LiveReport, ProvidesThePageWithoutDataAndTheDataSeparately) {
  const Folder folder;
  const auto run = folder.run("a", "{\"step\":1,\"loss\":2.0}\n");
  write_file_atomic(run + "/ranks.json",
                    "{\"step\":1,\"ranks\":[{\"rank\":0,\"sent_bytes\":5}]}\n");
  EXPECT_EQ(data_of(live_html()), nlohmann::json::parse("{\"live\": true}"));
  const auto data = nlohmann::json::parse(live_json(run, read_metrics(run + "/metrics.jsonl")));
  EXPECT_EQ(data["runs"][0], data_of(report_html({run}))["runs"][0]);
  EXPECT_EQ(data["running"], false);
  EXPECT_EQ(data["ranks"][0]["sent_bytes"], 5);
}

TEST(Report, OpensWithoutANetworkAndEscapesText) {
  const Folder folder;
  const auto run = folder.run("<b>bold", "", "[run]\nname = \"</script><b>\"\n");
  const auto page = report_html({run});
  EXPECT_THAT(page, Not(HasSubstr("</script><b>")));
  EXPECT_THAT(page, Not(HasSubstr("<b>bold")));
  EXPECT_THAT(page, Not(HasSubstr("src=\"http")));
  EXPECT_THAT(page, Not(HasSubstr("href=\"http")));
  EXPECT_EQ(data_of(page)["runs"][0]["config"]["run.name"], "\"</script><b>\"");
}

TEST(Report, OverlaysSeveralRunsAndRefusesAFolderWithoutARun) {
  const Folder folder;
  const auto a = folder.run("a", "{\"step\":1,\"loss\":1}\n"),
             b = folder.run("b", "{\"step\":1,\"loss\":2}\n", "[train]\nbatch = 32\n");
  const auto data = data_of(report_html({a, b}));
  EXPECT_EQ(data["runs"].size(), 2u);
  EXPECT_EQ(data["runs"][1]["config"]["train.batch"], "32");
  expect_refused(
      [&] {
        report_html({a, folder.dir / "none"});
      },
      Errc::kInvalidArgument, "is no run folder: it has no config.toml");
  expect_refused([] { report_html({}); }, Errc::kInvalidArgument, "at least one run folder");
  write_report({a, b}, folder.dir / "report.html");
  EXPECT_EQ(read_file(folder.dir / "report.html", 1 << 20), report_html({a, b}));
}

}  // namespace
}  // namespace weft::observe

#include "weft/cli/bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "bench/suite/internal/participant.h"
#include "bench/suite/internal/peers.h"
#include "bench/suite/internal/rounds.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/plan/collectives/calibration.h"
#include "weft/plan/collectives/choice.h"

namespace weft::cli {
namespace {

using namespace bench_internal;
using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Errc code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  throw std::runtime_error("no error was thrown");
}

// A peer that runs a shell script for every command, and answers with its output. "$command" is the
// command.
std::shared_ptr<Participant> shell_peer(const std::string& body, const Signals& signals) {
  const std::string script = "while read -r command; do " + body + "; done";
  return std::make_shared<Participant>("peer", std::vector<std::string>{"sh", "-c", script},
                                       std::vector<std::string>{}, signals);
}

TEST(BenchMessage, IsReadFlatWithNestedObjectsAsDottedNames) {
  const auto message =
      parse_message(R"({"impl":"a \"b\"","us":[1.5,2e3,-3],"state_mb":{"weights":4},)"
                    R"("verified":true,"none":null,"empty":[]})");
  EXPECT_EQ(message.text("impl"), "a \"b\"");
  EXPECT_THAT(message.numbers.at("us"), ElementsAre(1.5, 2000, -3));
  EXPECT_EQ(message.number("state_mb.weights"), 4);
  EXPECT_TRUE(message.is_true("verified"));
  EXPECT_EQ(message.number("missing", 7), 7);
}

TEST(BenchMessage, RefusesWhatIsNoAnswer) {
  for (const char* line :
       {"", "hello", "{\"a\":}", "{\"a\":1", "{\"a\":1} 2", "[1]", "{\"a\":[1,]}", "{\"a\":\"b"}) {
    EXPECT_EQ(code_of([&] { parse_message(line); }), Errc::kCorrupt) << line;
  }
}

TEST(BenchRounds, MedianAndPercentileAreThoseOfTheTextbook) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  std::vector<double> hundred;
  for (int i = 100; i > 0; --i) hundred.push_back(i);
  EXPECT_EQ(p95(hundred), 95);
  EXPECT_TRUE(std::isnan(median({})));
}

TEST(BenchRounds, TheSpeedupIsTheMedianOfRatiosWithinARound) {
  // In the second round, the machine was ten times slower for both.
  const Series ours{"weft", {1, 10, 1}, {}, {}, {}}, theirs{"peer", {2, 20, 4}, {}, {}, {}};
  EXPECT_EQ(speedup(ours, theirs), 2);
}

TEST(BenchRounds, AskEveryoneEveryRoundAndLeaveOutWhoeverFails) {
  const Signals signals;
  std::vector<Contender> contenders = {
      {"good", shell_peer("echo '{\"us\":[1,2,3]}'", signals), "check", "go", "us"},
      {"refuses", shell_peer("echo '{\"error\":\"no such op\"}'", signals), "check", "go", "us"},
      {"dies", shell_peer("exit 3", signals), "check", "go", "us"},
      {"silent", shell_peer("sleep 60", signals), "check", "go", "us"},
      {"babbles", shell_peer("echo no json", signals), "check", "go", "us"}};
  const auto all = interleave(contenders, {.rounds = 3, .limit = 500ms});
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].impl, "good");
  EXPECT_THAT(all[0].rounds, ElementsAre(2, 2, 2));
  EXPECT_EQ(all[0].samples.size(), 9U);
  EXPECT_TRUE(contenders[1].participant) << "a refused command leaves the peer usable";
  for (int i : {2, 3, 4}) EXPECT_FALSE(contenders[static_cast<std::size_t>(i)].participant);
}

TEST(BenchParticipant, ASignalEndsTheWaitForAnAnswer) {
  const Signals signals;
  const auto peer = shell_peer("kill -TERM $PPID; sleep 60", signals);
  EXPECT_THROW(peer->ask("go", 30s), Interrupted);
}

TEST(Bench, RefusesUnknownNamesAndSaysWhatThereIs) {
  BenchOptions options{.what = "collectives", .ops = {"all_reduse"}};
  EXPECT_EQ(code_of([&] { bench(options); }), Errc::kBadConfig);
  EXPECT_EQ(code_of([] { bench({.what = "speed"}); }), Errc::kBadConfig);
}

// Uses a calibration file that belongs to the test.
class BenchChoice : public testing::Test {
 protected:
  void SetUp() override { ::setenv("WEFT_CALIBRATION", (folder_ / "costs.txt").c_str(), 1); }
  void TearDown() override { ::unsetenv("WEFT_CALIBRATION"); }
  static std::string output_of(const BenchOptions& options) {
    testing::internal::CaptureStdout();
    const int code = bench(options);
    const std::string text = testing::internal::GetCapturedStdout();
    return code == 0 ? text : "failed: " + text;
  }
  TempDir folder_;
};

TEST_F(BenchChoice, ExplainNamesTheChoiceAndPricesAllOthers) {
  plan::CostTable table{
      .machine = plan::machine_identity(), .date = "2026-11-21", .transports = {}};
  table.transports[plan::Transport::kTcp] = plan::default_table().of(plan::Transport::kTcp);
  table.transports[plan::Transport::kTcp].measured = {
      {schedule::Collective::kAllReduce, schedule::Algorithm::kRing, 4, plan::Curve({{0, 7e-6}})}};
  plan::save_table(table);
  const std::string text = output_of({.what = "collectives",
                                      .ranks = 4,
                                      .ops = {"all_reduce"},
                                      .sizes = {1 << 20},
                                      .explain = true});
  EXPECT_THAT(text, HasSubstr("2026-11-21"));
  EXPECT_THAT(text, HasSubstr("all_reduce, 1 MiB, 4 ranks: ring"));
  EXPECT_THAT(text, testing::ContainsRegex("ring +7.00 us +1.00x +measured"));
  for (const char* other :
       {"halving_doubling", "recursive_doubling", "sharded", "double_binary_tree in 64 KiB"}) {
    EXPECT_THAT(
        text, testing::ContainsRegex(std::string(other) + " +[0-9.]+ us +[0-9.]+x +by the model"));
  }
}

class BenchChoiceSlow : public BenchChoice {};

TEST_F(BenchChoiceSlow, CalibrationLeavesATableOfTodayThatPlansAndVerifies) {
  EXPECT_THAT(output_of({.what = "calibrate", .rounds = 3, .worlds = {2}, .json = true}),
              HasSubstr("\"runs\":3"));
  const plan::CostTable table = plan::load_table();
  EXPECT_EQ(table.machine, plan::machine_identity());
  EXPECT_EQ(table.date.size(), 10U);
  for (const auto transport :
       {plan::Transport::kDirect, plan::Transport::kShm, plan::Transport::kTcp}) {
    ASSERT_TRUE(table.transports.contains(transport));
    EXPECT_GT(table.of(transport).message.at(25e6), table.of(transport).message.at(8));
    EXPECT_GT(table.of(transport).reduce.at(25e6), 0);
  }
  for (const auto collective : schedule::collectives()) {
    const std::int64_t count = collective == schedule::Collective::kBarrier ? 0 : 100;
    EXPECT_TRUE(
        plan::Planner(table, {plan::Transport::kTcp, 2}).choose({collective, count, 4}).measured);
  }
  const std::string text = output_of({.what = "collectives",
                                      .rounds = 1,
                                      .ops = {"all_reduce", "barrier"},
                                      .sizes = {1000},
                                      .verify = true,
                                      .worlds = {2}});
  EXPECT_THAT(text, HasSubstr("of 2 points"));
}

TEST(BenchSlow, CollectivesOfEveryVariantAreRightAndTimed) {
  BenchOptions options{.what = "collectives", .rounds = 1, .json = true};
  options.ops = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                 "reduce",     "all_to_all", "barrier",        "ping_pong"};
  options.sizes = {64, 100'000};
  options.impls = {"weft-net", "weft", "weft-ordinary", "weft-tcp"};
  testing::internal::CaptureStdout();
  const int code = bench(options);
  const std::string lines = testing::internal::GetCapturedStdout();
  EXPECT_EQ(code, 0);
  for (const auto& op : options.ops) {
    for (const auto& impl : options.impls)
      EXPECT_THAT(lines, HasSubstr("{\"impl\":\"" + impl + "\",\"op\":\"" + op + "\""));
  }
}

// Runs a bench, expects that it returns 0, and returns its output.
std::string lines_of(const BenchOptions& options) {
  testing::internal::CaptureStdout();
  const int code = bench(options);
  const std::string lines = testing::internal::GetCapturedStdout();
  EXPECT_EQ(code, 0);
  return lines;
}

TEST(BenchSlow, PreparedCallsTakePartInAllReducesOfSmallVectorsOnly) {
  const std::string lines = lines_of({.what = "collectives",
                                      .rounds = 1,
                                      .ops = {"all_reduce", "broadcast"},
                                      .sizes = {64, 100'000},
                                      .impls = {"weft", "weft-prepared"},
                                      .json = true});
  for (const char* part : {"\"op\":\"all_reduce\",\"bytes\":64", "\"op\":\"broadcast\"",
                           "\"op\":\"all_reduce\",\"bytes\":100000"}) {
    EXPECT_THAT(lines, HasSubstr(std::string("{\"impl\":\"weft\",") + part));
  }
  EXPECT_THAT(lines, HasSubstr("{\"impl\":\"weft-prepared\",\"op\":\"all_reduce\",\"bytes\":64"));
  EXPECT_THAT(lines, Not(HasSubstr("\"weft-prepared\",\"op\":\"broadcast\"")));
  EXPECT_THAT(lines, Not(HasSubstr("\"weft-prepared\",\"op\":\"all_reduce\",\"bytes\":100000")));
}

TEST(BenchSlow, ShardedAndTensorParallelTrainingHasTheLossesOfOneProcess) {
  BenchOptions options{
      .what = "sharded", .rounds = 1, .models = {"gpt-128"}, .batch = 1, .json = true};
  options.impls = {"weft",
                   "weft-zero1",
                   "weft-zero2",
                   "weft-zero3",
                   "weft-zero1-private",
                   "weft-zero2-private",
                   "weft-zero3-private"};
  const std::string lines = lines_of(options);
  for (const auto& impl : options.impls)
    EXPECT_THAT(lines, HasSubstr("{\"impl\":\"" + impl + "\",\"model\":\"gpt-128\",\"optimizer\""));
  EXPECT_THAT(lines, HasSubstr("\"measured\":\"weft-zero3-private, peak of a rank / whole\""));
  options.what = "tensor";
  options.impls = {"weft-tensor", "weft-one"};
  EXPECT_THAT(lines_of(options), HasSubstr("\"measured\":\"weft-one / weft-tensor\""));
}

TEST(BenchSlow, PipelinesHaveTheLossesOfOneProcessAndAutomaticCutsAreMeasured) {
  const BenchOptions options{.what = "pipeline", .rounds = 1, .models = {"gpt-128"}, .json = true};
  const std::string lines = lines_of(options);
  for (const char* schedule : {"gpipe", "1f1b", "zb_h1", "zb_h2"}) {
    EXPECT_THAT(lines,
                HasSubstr("\"measured\":\"weft-" + std::string(schedule) + ", bound / step\""));
  }
  EXPECT_THAT(lines_of({.what = "stages", .rounds = 1, .models = {"gpt-128"}, .json = true}),
              HasSubstr("\"measured\":\"4 stages, slowest / of the best cuts\""));
}

TEST(BenchPeers, AreFoundAboveTheProgramAndNeverInTheCurrentFolder) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  EXPECT_EQ(find_above(program.filename().string()), program.string());
  EXPECT_EQ(find_above(program.parent_path().filename().string()), program.parent_path().string());
  const auto before = std::filesystem::current_path();
  const auto planted =
      std::filesystem::temp_directory_path() / ("weft_planted_" + std::to_string(::getpid()));
  std::filesystem::create_directories(planted / "bench/peers");
  std::ofstream(planted / "bench/peers/planted.py") << "raise SystemExit(1)\n";
  std::filesystem::current_path(planted);
  EXPECT_EQ(find_above("bench/peers/planted.py"), std::nullopt);
  std::filesystem::current_path(before);
  std::filesystem::remove_all(planted);
}

TEST(BenchPeers, APythonThatCannotImportTheModuleIsPassedOverWithoutItsTraceback) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("weft_pythons_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const auto python = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder / name) << "#!/bin/sh\n" << text;
    std::filesystem::permissions(folder / name, std::filesystem::perms::owner_all);
    return (folder / name).string();
  };
  const std::string broken = python("broken", "echo Traceback >&2; exit 1\n");
  const std::string good = python("good", "test \"$2\" = 'import torch'\n");
  testing::internal::CaptureStderr();
  EXPECT_EQ(python_that_imports("torch", {"/nowhere/python", broken, good}), good);
  EXPECT_EQ(python_that_imports("torch", {broken}), std::nullopt);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  std::filesystem::remove_all(folder);
}

TEST(BenchSlow, AMissingPeerIsNamedOnceWithTheCommandThatAddsIt) {
  testing::internal::CaptureStderr();
  const Peers peers = collective_peers(3, true);  // 3 ranks over TCP: Open MPI and Gloo alone
  for (int bench = 0; bench < 2; ++bench) warn_of_missing(peers);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'),
            static_cast<std::ptrdiff_t>(peers.missing.size()));
  for (const auto& why : peers.missing) EXPECT_THAT(why, HasSubstr("./dev bench setup adds it"));
  EXPECT_EQ(peers.missing.size() + peers.found.size(), 2u);
}

TEST(BenchSlow, TrainingOfEveryVariantHasTheLossesOfOneProcess) {
  BenchOptions options{.what = "training",
                       .rounds = 1,
                       .models = {"mlp", "resnet18-adamw"},
                       .batch = 4,
                       .json = true};
  options.impls = {"weft", "weft-parallelize", "weft-private", "weft-alone", "weft-alone-plain"};
  testing::internal::CaptureStdout();
  const int code = bench(options);
  const std::string lines = testing::internal::GetCapturedStdout();
  EXPECT_EQ(code, 0);
  for (const auto& impl : options.impls)
    EXPECT_THAT(lines, HasSubstr("{\"impl\":\"" + impl + "\",\"model\":\"resnet18\""));
}

}  // namespace
}  // namespace weft::cli

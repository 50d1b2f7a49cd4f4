// The user's algorithm decides which schedule runs, else rank 0's cost table.
#include "weft/comm/internal/tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"
#include "weft/plan/collectives/calibration.h"

namespace weft::comm::internal {
namespace {

using schedule::Algorithm;
using schedule::Collective;
using testing::HasSubstr;

constexpr std::size_t kFloat = 4;

// Returns the message of each rank if rank r asks for wanted[r]; rank 0's text includes its table,
// as agree_on_tuning() sends it.
std::vector<std::string> said(const std::vector<std::string>& wanted) {
  std::vector<std::string> all;
  for (int rank = 0; rank < static_cast<int>(wanted.size()); ++rank) {
    const auto listen = [&](const std::string& mine) {
      all.push_back(mine);
      return std::vector<std::string>(wanted.size(),
                                      rank == 0 ? mine : mine + plan::default_table().text());
    };
    agree_on_tuning({.algorithm = wanted[static_cast<std::size_t>(rank)]}, true, listen, rank);
  }
  return all;
}

Tuning tuning_of(int rank, const std::vector<std::string>& wanted) {
  const auto all = said(wanted);
  return agree_on_tuning(
      {.algorithm = wanted[static_cast<std::size_t>(rank)]}, true,
      [&](const std::string&) { return all; }, rank);
}

// A table in which `algorithm` is by far the fastest all-reduce in a world of four.
plan::CostTable table_for(Algorithm algorithm) {
  plan::CostTable table{
      .machine = plan::machine_identity(), .date = "2026-11-21", .transports = {}};
  table.transports[plan::Transport::kTcp] = plan::default_table().of(plan::Transport::kTcp);
  table.transports[plan::Transport::kTcp].measured = {
      {Collective::kAllReduce, algorithm, 4, plan::Curve({{0, 1e-9}})}};
  return table;
}

class TuningOfAGroup : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("WEFT_CALIBRATION", (folder_.path() + "/costs.txt").c_str(), 1);
  }
  void TearDown() override { ::unsetenv("WEFT_CALIBRATION"); }
  static schedule::Request all_reduce(std::int64_t count) {
    return {.collective = Collective::kAllReduce, .world = 4, .count = count};
  }
  TempDir folder_;
};

TEST_F(TuningOfAGroup, EveryRankUsesTheTableOfRankZero) {
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDoubleBinaryTree}) {
    save_table(table_for(algorithm));
    for (const int rank : {0, 3}) {
      const Tuning tuning = tuning_of(rank, {"", "auto", "", ""});
      const Chooser chooser(tuning, plan::Transport::kTcp, 4);
      for (const std::int64_t count : {1, 1000, 10'000'000}) {
        EXPECT_EQ(chooser.decide(all_reduce(count), kFloat).algorithm, algorithm)
            << "rank " << rank << ", " << count;
      }
    }
  }
}

TEST_F(TuningOfAGroup, TheUsersAlgorithmWinsForTheCollectivesThatItSupports) {
  save_table(table_for(Algorithm::kRecursiveDoubling));
  const Chooser chooser(tuning_of(1, {"chain", "chain"}), plan::Transport::kTcp, 4);
  EXPECT_EQ(chooser.decide({.collective = Collective::kBroadcast, .world = 4, .count = 10}, kFloat)
                .algorithm,
            Algorithm::kChain);
  EXPECT_EQ(chooser.decide(all_reduce(10), kFloat).algorithm, Algorithm::kRecursiveDoubling)
      << "a chain does no all-reduce";
}

TEST_F(TuningOfAGroup, RanksThatNameDifferentAlgorithmsAllThrow) {
  save_table(table_for(Algorithm::kRing));
  const std::vector<std::string> words = {"ring\n" + plan::default_table().text(), "auto\n"};
  for (const int rank : {0, 1}) {
    try {
      agree_on_tuning(
          {.algorithm = rank == 0 ? "ring" : "auto"}, true,
          [&](const std::string&) { return words; }, rank);
      FAIL() << "rank " << rank << " agreed";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kBadConfig);
      EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("ring"), HasSubstr("auto")));
    }
  }
}

TEST_F(TuningOfAGroup, OrderedSumsOverrideTheAlgorithmAndMustBeSetOnAllRanks) {
  const BackendOptions options{.algorithm = "ring", .ordered_sums = true};
  const Tuning tuning = agree_on_tuning(
      options, true, [](const std::string& mine) { return std::vector<std::string>(4, mine); }, 0);
  const Chooser chooser(tuning, plan::Transport::kTcp, 4);
  const auto chosen = [&](Collective collective) {
    return chooser.decide({.collective = collective, .world = 4, .count = 1'000'000}, kFloat)
        .algorithm;
  };
  EXPECT_EQ(chosen(Collective::kAllReduce), Algorithm::kSharded);
  EXPECT_EQ(chosen(Collective::kReduceScatter), Algorithm::kSharded);
  EXPECT_EQ(chosen(Collective::kAllGather), Algorithm::kRing);
  const std::vector<std::string> words = {"auto\n" + plan::default_table().text(),
                                          "auto with ordered sums\n"};
  EXPECT_THAT(refusal(
                  [&] {
                    agree_on_tuning(
                        {.ordered_sums = true}, true, [&](const std::string&) { return words; }, 1);
                  },
                  Errc::kBadConfig),
              HasSubstr("rank 0 uses algorithm auto and rank 1 auto with ordered sums"));
}

TEST_F(TuningOfAGroup, AnUnknownNameIsRejectedWithASuggestion) {
  const auto nobody = [](const std::string&) -> std::vector<std::string> {
    throw std::logic_error("used the exchange");
  };
  for (const auto& [name, hint] : {std::pair{"rign", "ring"}, std::pair{"direct", "messages"}}) {
    try {
      agree_on_tuning({.algorithm = name}, true, nobody, 0);
      FAIL() << name << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kBadConfig);
      EXPECT_THAT(error.what(), HasSubstr(hint));
    }
  }
}

TEST(Tuning, OnSeveralMachinesTheBuiltInCostsApplyUnlessAFileIsNamed) {
  const TempDir folder;
  ::setenv("XDG_CACHE_HOME", folder.path().c_str(), 1);
  save_table(table_for(Algorithm::kRing));
  const auto table_of = [](bool one_machine) {
    return *agree_on_tuning(
                {}, one_machine,
                [](const std::string& mine) { return std::vector<std::string>{mine}; }, 0)
                .table;
  };
  EXPECT_EQ(table_of(true), table_for(Algorithm::kRing));
  EXPECT_EQ(table_of(false), plan::default_table());
  ::setenv("WEFT_CALIBRATION", plan::calibration_path().c_str(), 1);
  EXPECT_EQ(table_of(false), table_for(Algorithm::kRing));
  ::unsetenv("WEFT_CALIBRATION");
  ::unsetenv("XDG_CACHE_HOME");
}

}  // namespace
}  // namespace weft::comm::internal

#include "weft/plan/collectives/cost_table.h"

#include <gtest/gtest.h>

#include <cmath>

#include "weft/base/error.h"

namespace weft::plan {
namespace cost_table_test {

using schedule::Algorithm;
using schedule::Collective;

CostTable some_table() {
  CostTable table{.machine = "Some CPU, 2 cores", .date = "2026-11-21", .transports = {}};
  TransportCost& cost = table.transports[Transport::kShm];
  cost = {.message = Curve({{8, 0.1}, {1024, 1.0 / 3}}),
          .duplex = 0.9,
          .overhead = 1e-7,
          .reduce = Curve::line(0, 1e-10),
          .measured = {}};
  cost.measured.push_back(
      {Collective::kBroadcast, Algorithm::kBinomial, 4, Curve({{1, 2}, {3, 4e-9}})});
  cost.measured.push_back({Collective::kBroadcast, Algorithm::kChain, 4, Curve({{1, 3}}), 65536});
  table.transports[Transport::kTcp] = cost;
  return table;
}

TEST(Curve, IsPiecewiseLinearConstantBeforeAndExtrapolatedBeyond) {
  const Curve curve({{10, 1}, {20, 2}, {40, 8}});
  EXPECT_DOUBLE_EQ(curve.at(0), 1);
  EXPECT_DOUBLE_EQ(curve.at(10), 1);
  EXPECT_DOUBLE_EQ(curve.at(15), 1.5);
  EXPECT_DOUBLE_EQ(curve.at(20), 2);
  EXPECT_DOUBLE_EQ(curve.at(30), 5);
  EXPECT_DOUBLE_EQ(curve.at(50), 11);
  EXPECT_DOUBLE_EQ(Curve({{10, 3}}).at(1e9), 3);
  EXPECT_DOUBLE_EQ(Curve().at(5), 0);
  EXPECT_DOUBLE_EQ(Curve::line(2e-6, 1e-9).at(5e8), 2e-6 + 0.5);
}

TEST(Curve, IsNeverNegative) { EXPECT_DOUBLE_EQ(Curve({{10, 2}, {20, 1}}).at(1000), 0); }

TEST(Curve, RefusesKnotsThatDoNotRise) {
  EXPECT_THROW(Curve({{10, 1}, {10, 2}}), Error);
  EXPECT_THROW(Curve({{10, -1}}), Error);
}

TEST(CostTable, LoadsWhatWasSaved) {
  const CostTable table = some_table();
  EXPECT_EQ(CostTable::parse(table.text()), table);
  EXPECT_EQ(CostTable::parse(table.text()).hash(), table.hash());
  EXPECT_EQ(CostTable::parse(default_table().text()), default_table());
}

TEST(CostTable, HashesDifferIfTablesDiffer) {
  CostTable other = some_table();
  ASSERT_EQ(other.hash(), some_table().hash());
  other.transports[Transport::kTcp].duplex = std::nextafter(0.9, 1.0);
  EXPECT_NE(other.hash(), some_table().hash());
}

TEST(CostTable, DetectsEveryDamage) {
  const std::string text = some_table().text();
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = damaged[i] == '7' ? '8' : '7';
    EXPECT_THROW(CostTable::parse(damaged), Error) << "at " << i;
    EXPECT_THROW(CostTable::parse(text.substr(0, i)), Error) << "cut at " << i;
  }
}

TEST(CostTable, UsesBuiltInCostsForAMissingTransport) {
  EXPECT_EQ(some_table().of(Transport::kMpi), default_table().of(Transport::kMpi));
  EXPECT_EQ(some_table().of(Transport::kShm).duplex, 0.9);
}

TEST(Payload, IsTheLongerSideOfTheBusiestRank) {
  const auto bytes = [](Collective collective) {
    return payload({.collective = collective, .rank = 1, .world = 3, .count = 10}, 4);
  };
  EXPECT_EQ(bytes(Collective::kAllReduce), 40);
  EXPECT_EQ(bytes(Collective::kBroadcast), 40);
  EXPECT_EQ(bytes(Collective::kGather), 120);
  EXPECT_EQ(bytes(Collective::kReduceScatter), 120);
  EXPECT_EQ(payload({.collective = Collective::kBarrier, .world = 3}, 4), 0);
}

}  // namespace cost_table_test
}  // namespace weft::plan

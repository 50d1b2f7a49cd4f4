// Reading of tables, statistics, and the goals that the published tables must reach.
#include "bench/plan_tables/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"

namespace weft::plan::tables {
namespace validate_test {

using testing::ElementsAre;

std::string published() { return WEFT_PUBLISHED; }

TEST(Csv, SplitsFieldsQuotesAndLines) {
  const CsvTable table = parse_csv("a,b\r\n1,\"x, \"\"y\"\"\"\n2,\n", "t");
  EXPECT_THAT(table.columns, ElementsAre("a", "b"));
  ASSERT_EQ(table.rows.size(), 2U);
  EXPECT_EQ(table.rows[0][1], "x, \"y\"");
  EXPECT_EQ(CsvRow(table, 1).whole("a"), 2);
  EXPECT_FALSE(CsvRow(table, 1).has("b"));
  expect_refused([&] { CsvRow(table, 0).number("b"); }, Errc::kCorrupt, "t, row 1: b is");
}

TEST(Csv, RefusesRaggedRowsAndOpenQuotesWithTheirLine) {
  expect_refused([] { parse_csv("a,b\n1\n", "t"); }, Errc::kCorrupt, "line 2: a row of 1 fields");
  expect_refused([] { parse_csv("a\n\"x\n", "t"); }, Errc::kCorrupt, "a quote is not closed");
  expect_refused([] { parse_csv("", "t"); }, Errc::kCorrupt, "empty");
}

// SciPy 1.17: kendalltau([1,2,3,4,5], [1,3,2,5,4]).statistic = 0.6; of the reversed list -1.
TEST(KendallTau, IsSciPys) {
  EXPECT_DOUBLE_EQ(kendall_tau({1, 2, 3, 4, 5}, {1, 3, 2, 5, 4}), 0.6);
  EXPECT_DOUBLE_EQ(kendall_tau({1, 2, 3}, {3, 2, 1}), -1);
  int pairs = 0;
  EXPECT_DOUBLE_EQ(kendall_tau({1, 1.001, 2}, {5, 4, 6}, &pairs), 1);
  EXPECT_EQ(pairs, 2);
}

TEST(Validate, NamesAFolderWithoutTables) {
  const TempDir empty;
  expect_refused([&] { validate_folder(empty.path(), calibration()); }, Errc::kInvalidArgument,
                 "has no tables");
  expect_refused([] { validate_folder("no/such/folder", calibration()); }, Errc::kInvalidArgument,
                 "no/such/folder");
}

TEST(Validate, SkipsTablesThatItDoesNotKnowAndSaysSo) {
  const TableReport report = validate_table(parse_csv("x\n1\n2\n", "unheard_of"), calibration());
  ASSERT_EQ(report.skipped.size(), 1U);
  EXPECT_EQ(report.skipped[0].rows, 2);
}

// The tables of formulas are right to the last printed digit.
TEST(Validate, FormulaTablesAreExact) {
  for (const char* name : {"zero_table1_memory", "zero_table2_max_model"}) {
    const std::string file = published() + "/" + name + ".csv";
    const TableReport report =
        validate_table(parse_csv(read_file(file, 1 << 20), name), calibration());
    const Errors errors = errors_of(report.results, Quantity::kFormula, true);
    EXPECT_GT(errors.count, 15);
    EXPECT_EQ(errors.worst, 0) << name;
  }
}

struct Goal {
  double median, mean;
};

// Tables whose medians and means reach the goals of 8 and 10 %, or the bounds that stand here where
// they do not (docs/planning-results.md explains each).
TEST(ValidateSlow, PublishedTablesStayWithinTheirErrors) {
  const std::map<std::string, Goal> goals = {{"act_recompute_table5_end_to_end", {0.08, 0.10}},
                                             {"alpa_2021_v100_32gb", {0.08, 0.10}},
                                             {"alpa_osdi22_e2e", {0.08, 0.10}},
                                             {"bloom_176b_tuning_a100", {0.08, 0.10}},
                                             {"deepspeed_misc", {0.10, 0.10}},
                                             {"dlperf_data_parallel_v100", {0.08, 0.10}},
                                             {"dlperf_gpt_v100", {0.08, 0.10}},
                                             {"megatron_bridge", {0.08, 0.10}},
                                             {"megatron_h100_2024", {0.08, 0.10}},
                                             {"megatron_readme_2020_v100_a100", {0.08, 0.10}},
                                             {"megatron_sc21_table1", {0.08, 0.10}},
                                             {"nanotron_llama1b", {0.08, 0.10}},
                                             {"nccl_busbw_summary", {0.08, 0.10}},
                                             {"nccl_collectives", {0.08, 0.10}},
                                             {"torchgpipe_p40", {0.10, 0.10}},
                                             {"torchtitan", {0.08, 0.10}}};
  int seen = 0;
  for (const TableReport& table : validate_folder(published(), calibration())) {
    const auto goal = goals.find(table.table);
    if (goal == goals.end()) continue;
    ++seen;
    const Errors errors = errors_of(table.results, Quantity::kSeconds, false);
    EXPECT_LE(errors.median, goal->second.median) << table.table;
    EXPECT_LE(errors.mean, goal->second.mean) << table.table;
    const Errors fits = errors_of(table.results, Quantity::kFits, false);
    EXPECT_LE(fits.mean, table.table == "bloom_176b_tuning_a100" ? 0.05 : 0.12) << table.table;
  }
  EXPECT_EQ(seen, static_cast<int>(goals.size()));
}

// Mixtures, hybrids and adapters are no exceptions. Of the rows, three have no prediction.
TEST(ValidateSlow, AllRowsOfMegatronBridgeStayWithinTenPercentOnEachGeneration) {
  const char* name = "megatron_bridge";
  const TableReport table = validate_table(
      parse_csv(read_file(published() + "/" + name + ".csv", 1 << 20), name), calibration());
  EXPECT_EQ(table.rows - static_cast<int>(table.results.size()), 3);
  std::map<Generation, std::vector<CaseResult>> by;
  for (const CaseResult& r : table.results) {
    EXPECT_TRUE(r.counts()) << r.one.label << ": " << r.failure << r.one.exception;
    by[r.generation].push_back(r);
  }
  ASSERT_EQ(by.size(), 2U);
  for (const auto& [generation, results] : by)
    EXPECT_LE(errors_of(results, Quantity::kSeconds, true).mean, 0.09) << to_string(generation);
}

// Each table is predicted with constants that were fitted to the other tables of its generation.
TEST(ValidateSlow, TablesOfHopperThatWereLeftOutStayWithinTenPercent) {
  std::vector<TableReport> tables;
  for (const char* name : {"megatron_h100_2024", "nanotron_llama1b", "torchtitan"})
    tables.push_back(validate_table(
        parse_csv(read_file(published() + "/" + name + ".csv", 1 << 20), name), calibration()));
  int seen = 0;
  for (const LeftOut& one : left_out_checks(tables, cross_checks(tables))) {
    if (one.generation == Generation::kAmpere) continue;
    ++seen;
    EXPECT_LE(one.left_out, 0.10) << to_string(one.generation);
    EXPECT_LE(one.halves, 0.10) << to_string(one.generation);
    EXPECT_GT(one.halves, 0) << to_string(one.generation);
    EXPECT_LE(one.shipped, 0.10) << to_string(one.generation);
    EXPECT_LE(one.fit, one.left_out + 0.005) << to_string(one.generation);
  }
  EXPECT_EQ(seen, 1);
}

}  // namespace validate_test
}  // namespace weft::plan::tables

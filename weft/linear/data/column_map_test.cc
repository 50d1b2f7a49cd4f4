#include "weft/linear/data/column_map.h"

#include <gtest/gtest.h>

namespace weft::linear {
namespace column_map_test {

SparseRows some_rows() {
  SparseRows rows;
  rows.add(1, std::vector<Entry>{{5, 1}, {90'000'000, 2}});
  rows.add(-1, std::vector<Entry>{{7, 3}, {kBiasColumn, 1}});
  rows.add(1, {});
  return rows;
}

TEST(ColumnMap, CountsColumnsWithoutTheBias) {
  EXPECT_EQ(count_columns(some_rows()), 90'000'001U);
  EXPECT_EQ(used_columns(some_rows()), (std::vector<std::uint32_t>{5, 7, 90'000'000}));
  EXPECT_EQ(count_columns(SparseRows()), 0U);
}

TEST(ColumnMap, IsDenseOnlyWhereTheDataPaysForTheWeights) {
  EXPECT_TRUE(ColumnMap::is_dense(1 << 20, 0));
  EXPECT_FALSE(ColumnMap::is_dense(90'000'001, 4));
  EXPECT_TRUE(ColumnMap::is_dense(90'000'001, 30'000'000));
}

TEST(ColumnMap, GivesSparseColumnsAndTheBiasIdsInOrder) {
  auto map = ColumnMap::sparse({5, 7, 90'000'000});
  EXPECT_EQ(map.size(), 3U);
  map.add_bias();
  EXPECT_EQ(map.size(), 4U);
  EXPECT_EQ(map.find(7), 1U);
  EXPECT_EQ(map.find(6), ColumnMap::kNone);
  EXPECT_EQ(map.find(kBiasColumn), 3U);
  EXPECT_EQ(map.column(2), 90'000'000U);
  EXPECT_EQ(map.column(3), kBiasColumn);
}

TEST(ColumnMap, RenamesRowsAndDropsColumnsWithoutAnId) {
  auto rows = some_rows();
  auto map = ColumnMap::sparse({7, 90'000'000});
  map.add_bias();
  map.rename(rows);
  ASSERT_EQ(rows.row(0).size(), 1U);
  EXPECT_EQ(rows.row(0)[0].column, 1U);
  EXPECT_EQ(rows.row(0)[0].value, 2.0F);
  ASSERT_EQ(rows.row(1).size(), 2U);
  EXPECT_EQ(rows.row(1)[1].column, 2U);
  EXPECT_TRUE(rows.row(2).empty());
  EXPECT_EQ(rows.entries.size(), 3U);
}

TEST(ColumnMap, DenseColumnsAreTheirOwnIds) {
  auto map = ColumnMap::dense(8);
  map.add_bias();
  auto rows = some_rows();
  map.rename(rows);
  EXPECT_EQ(rows.row(0).size(), 1U);
  EXPECT_EQ(rows.row(1)[0].column, 7U);
  EXPECT_EQ(rows.row(1)[1].column, 8U);
}

}  // namespace column_map_test
}  // namespace weft::linear

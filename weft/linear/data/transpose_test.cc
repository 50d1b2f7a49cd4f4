#include "weft/linear/data/transpose.h"

#include <gtest/gtest.h>

#include <map>

#include "weft/base/testing/refusal.h"
#include "weft/linear/data/power_law.h"

namespace weft::linear {
namespace transpose_test {

TEST(Transpose, EachEntryReachesTheOwnerOfItsColumnInTheOrderOfTheRows) {
  constexpr PowerLaw kLaw{.rows = 50, .columns = 101, .row_entries = 9};
  constexpr int kRanks = 3;
  const auto all = generate(kLaw, 0, 50);
  std::map<std::pair<std::uint32_t, std::uint32_t>, float> expected;
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const Entry& e : all.row(i)) expected[{e.column, static_cast<std::uint32_t>(i)}] = e.value;
  }
  std::vector<std::vector<std::string>> packed;
  for (const auto& [first, last] : {std::pair(0, 10), {10, 10}, {10, 50}})
    packed.push_back(pack_columns(generate(kLaw, first, last), first, kRanks));
  std::size_t found = 0;
  std::uint32_t owned = 0;
  for (std::uint32_t owner = 0; owner < kRanks; ++owner) {
    const ColumnShare share{owner, kRanks};
    std::vector<std::string> mine;
    for (const auto& from : packed) mine.push_back(from[owner]);
    const auto columns = unpack_columns(mine, share.count(101));
    ASSERT_EQ(columns.size(), share.count(101));
    owned += share.count(101);
    for (std::uint32_t j = 0; j < columns.size(); ++j) {
      std::int64_t last = -1;
      for (const Entry& e : columns.row(j)) {
        EXPECT_GT(e.column, last);
        last = e.column;
        EXPECT_EQ(e.value, expected.at({share.column(j), e.column}));
        ++found;
      }
    }
  }
  EXPECT_EQ(owned, 101U);
  EXPECT_EQ(found, expected.size());
}

TEST(Transpose, AnEntryOfAnotherOwnersColumnIsRefused) {
  SparseRows rows;
  rows.add(1, std::vector<Entry>{{7, 1}});
  expect_refused([&] { unpack_columns(pack_columns(rows, 0, 1), 7); }, Errc::kCorrupt,
                 "a column of another rank");
}

}  // namespace transpose_test
}  // namespace weft::linear

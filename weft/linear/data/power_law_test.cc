#include "weft/linear/data/power_law.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "weft/base/testing/refusal.h"

namespace weft::linear {
namespace power_law_test {

constexpr PowerLaw kSmall{.rows = 2000, .columns = 1000, .row_entries = 20};

TEST(PowerLaw, RowsDoNotDependOnThePartThatIsGenerated) {
  const auto all = generate(kSmall, 0, 100), part = generate(kSmall, 60, 80);
  for (std::size_t i = 0; i < part.size(); ++i) {
    EXPECT_EQ(part.labels[i], all.labels[60 + i]);
    const auto a = part.row(i), b = all.row(60 + i);
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end(), [](Entry x, Entry y) {
      return x.column == y.column && x.value == y.value;
    }));
  }
}

TEST(PowerLaw, RowsHaveUnitLengthAndAscendingDifferentColumns) {
  const auto rows = generate(kSmall, 0, 200);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto row = rows.row(i);
    ASSERT_EQ(row.size(), 20U);
    double squares = 0;
    for (std::size_t k = 0; k < row.size(); ++k) {
      squares += static_cast<double>(row[k].value) * row[k].value;
      if (k > 0) {
        EXPECT_GT(row[k].column, row[k - 1].column);
      }
    }
    EXPECT_NEAR(squares, 1, 1e-5);
  }
}

TEST(PowerLaw, PopularityFallsAsAPowerAndBothLabelsOccur) {
  const auto rows = generate(kSmall, 0, 2000);
  std::vector<double> counts(1000);
  for (const Entry& entry : rows.entries) ++counts[entry.column];
  std::sort(counts.rbegin(), counts.rend());
  // The popularity of places 90 to 109 to that of places 390 to 409: (400 + 10) / (100 + 10).
  double early = 0, late = 0;
  for (int i = 0; i < 20; ++i) early += counts[90 + i], late += counts[390 + i];
  EXPECT_NEAR(early / late, 410.0 / 110, 0.6);
  const auto positive = std::count(rows.labels.begin(), rows.labels.end(), 1.0);
  EXPECT_GT(positive, 600);
  EXPECT_LT(positive, 1400);
}

TEST(PowerLaw, ImpossibleShapesAreRefused) {
  expect_refused([] { generate({.rows = 5}, 0, 6); }, Errc::kInvalidArgument, "outside");
  expect_refused([] { generate({.rows = 5, .columns = 10, .row_entries = 3}, 0, 5); },
                 Errc::kInvalidArgument, "a fifth");
}

}  // namespace power_law_test
}  // namespace weft::linear

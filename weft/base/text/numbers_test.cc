#include "weft/base/text/numbers.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "weft/base/testing/decimal_comma.h"

namespace weft {

TEST(Numbers, ParseNumberTakesTheWholeTextOnly) {
  EXPECT_EQ(parse_number<int>("-12"), -12);
  EXPECT_EQ(parse_number<double>("2.5e-3"), 2.5e-3);
  EXPECT_EQ(parse_number<std::uint8_t>("255"), 255);
  for (const char* const text : {"", " 1", "1 ", "+1", "0x10", "1.5", "99999999999"})
    EXPECT_EQ(parse_number<int>(text), std::nullopt) << text;
  EXPECT_EQ(parse_number<std::uint8_t>("-1"), std::nullopt);
}

TEST(Numbers, ParseCountRefusesNegativeNumbers) {
  EXPECT_EQ(parse_count("0"), 0);
  EXPECT_EQ(parse_count("-1"), std::nullopt);
  EXPECT_EQ(parse_count("one"), std::nullopt);
  EXPECT_EQ(parse_count<std::int64_t>("5000000000"), 5'000'000'000);
}

TEST(Numbers, FormattedHasTextsOfAnyLength) {
  EXPECT_EQ(formatted("%.1f ms, rank %d", 12.34, 3), "12.3 ms, rank 3");
  EXPECT_EQ(formatted("%s", ""), "");
  for (const std::size_t length : {127, 128, 1000})
    EXPECT_EQ(formatted("%s", std::string(length, 'x').c_str()), std::string(length, 'x'));
}

TEST(Numbers, FormattedHasADecimalPointInEachLocale) {
  const DecimalComma locale;
  EXPECT_EQ(formatted("%.1f ms", 1234.5), "1234.5 ms");
  EXPECT_EQ(std::to_string(0.5), "0,500000");  // the program's locale is as it was
}

}  // namespace weft

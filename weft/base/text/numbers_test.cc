#include "weft/base/text/numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

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

TEST(Numbers, ShortenedIsOneOnlyFromOneOn) {
  EXPECT_EQ(shortened(0.99996), "0.9999");
  EXPECT_EQ(shortened(-0.99996), "-0.9999");
  EXPECT_EQ(shortened(1), "1");
  EXPECT_EQ(shortened(1.00001), "1");
  EXPECT_EQ(shortened(-1), "-1");
  EXPECT_EQ(shortened(0.32), "0.32");
  EXPECT_EQ(shortened(0.000012344), "1.234e-05");
  EXPECT_EQ(shortened(0), "0");
}

TEST(Numbers, RoundedKeepsFourDigitsOfASmallNumber) {
  EXPECT_EQ(rounded(2.302585, 4), 2.3026);
  EXPECT_EQ(rounded(0.93214, 4), 0.9321);
  EXPECT_EQ(rounded(0.0000456789, 4), 4.568e-05);
  EXPECT_EQ(rounded(-0.0000456789, 4), -4.568e-05);
  EXPECT_EQ(rounded(0.99996, 4), 0.9999);
  EXPECT_EQ(rounded(0, 4), 0);
  EXPECT_EQ(rounded(812.4, 0), 812);
  EXPECT_EQ(rounded(0.31416, 0), 0.3142);
  EXPECT_TRUE(std::isnan(rounded(std::numeric_limits<double>::quiet_NaN(), 4)));
}

TEST(Numbers, FormattedHasADecimalPointInEachLocale) {
  const DecimalComma locale;
  EXPECT_EQ(formatted("%.1f ms", 1234.5), "1234.5 ms");
  EXPECT_EQ(std::to_string(0.5), "0,500000");  // the program's locale is as it was
}

}  // namespace weft

#include "weft/base/text/variables.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace weft {

TEST(Variables, AreNotSetIfTheyAreEmpty) {
  ::unsetenv("WEFT_A");
  EXPECT_EQ(variable_or_null("WEFT_A"), nullptr);
  EXPECT_EQ(variable("WEFT_A"), "");
  EXPECT_FALSE(is_variable_set("WEFT_A"));
  ::setenv("WEFT_A", "", 1);
  EXPECT_EQ(variable_or_null("WEFT_A"), nullptr);
  EXPECT_FALSE(is_variable_set("WEFT_A"));
  ::setenv("WEFT_A", " x", 1);
  EXPECT_EQ(variable("WEFT_A"), " x");
  EXPECT_STREQ(variable_or_null("WEFT_A"), " x");
  EXPECT_TRUE(is_variable_set("WEFT_A"));
}

TEST(Variables, AreNumbersIfTheyAreWholeNumbers) {
  const auto number = [](const char* text) {
    ::setenv("WEFT_A", text, 1);
    return number_variable("WEFT_A");
  };
  EXPECT_EQ(number("17"), 17);
  EXPECT_EQ(number("-3"), -3);
  for (const char* text : {"", " 1", "1 ", "1.5", "x", "99999999999", "0x10"})
    EXPECT_EQ(number(text), std::nullopt) << text;
  ::unsetenv("WEFT_A");
  EXPECT_EQ(number_variable("WEFT_A"), std::nullopt);
}

}  // namespace weft

#include "weft/base/json/json_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "weft/base/json/json.h"

namespace weft {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(JsonText, QuotesWithEscapesAndReplacesInvalidUtf8) {
  EXPECT_EQ(json_quote("a\"b\\c\n\t\x01"), "\"a\\\"b\\\\c\\n\\u0009\\u0001\"");
  EXPECT_EQ(json_quote("h\xC3\xA9 \xE2\x96\x88 \xF0\x9F\x98\x80"),
            "\"h\xC3\xA9 \xE2\x96\x88 \xF0\x9F\x98\x80\"");
  EXPECT_EQ(json_quote("\xFF"), "\"\xEF\xBF\xBD\"");
  EXPECT_EQ(json_quote("\xC3"), "\"\xEF\xBF\xBD\"");  // truncated
  EXPECT_EQ(json_quote("\xC0\xAF"),
            "\"\xEF\xBF\xBD\xEF\xBF\xBD\"");  // overlong '/'
  EXPECT_EQ(json_quote("\xED\xA0\x80"),
            "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");  // surrogate
  EXPECT_EQ(json_quote("\xF4\x90\x80\x80"),
            "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");  // above U+10FFFF
}

TEST(JsonText, WritesNumbersThatReadBackExactlyAndNullForNanAndInfinity) {
  for (const double value : {0.1, 1.0 / 3, 1e300, -2.5, 5e-324})
    EXPECT_EQ(std::strtod(json_number(value).c_str(), nullptr), value);
  EXPECT_EQ(json_number(3), "3");
  EXPECT_EQ(json_number(std::nan("")), "null");
  EXPECT_EQ(json_number(-kInfinity), "null");
}

TEST(JsonWriter, SeparatesValuesAndNestsThem) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().field("a", 1).field("b", "x").key("c").begin_array();
  json.value(true).value(std::uint64_t{18446744073709551615u}).begin_object().end_object();
  json.begin_array().value(-2).value(0.5).end_array().end_array().key("d").raw("null").end_object();
  EXPECT_EQ(text, R"({"a":1,"b":"x","c":[true,18446744073709551615,{},[-2,0.5]],"d":null})");
}

TEST(JsonWriter, AppendsToItsTextAndSpacesIfAsked) {
  std::string text = "1\n";
  JsonWriter(text, JsonStyle::kSpaced).begin_object().field("a", 1).field("b", 2).end_object();
  EXPECT_EQ(text, "1\n{\"a\": 1, \"b\": 2}");
}

TEST(JsonWriter, EscapesKeysAndStringsAndWritesNullForNanAndInfinity) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().field("\"\n", std::string("\\\xFF")).field("n", std::nan(""));
  json.field("i", -kInfinity).field("f", 0.1f).end_object();
  EXPECT_EQ(text,
            "{\"\\\"\\n\":\"\\\\\xEF\xBF\xBD\",\"n\":null,\"i\":null,"
            "\"f\":0.10000000149011612}");
}

TEST(JsonLine, KeepsTheOrderOfTheKeysAndWritesOneSpacedLine) {
  EXPECT_EQ(json_line({{"z", 1},
                       {"a", {{"y", true}, {"b", nullptr}}},
                       {"list", nlohmann::ordered_json::array({1, "\n", -2, 0.5})},
                       {"none", nlohmann::ordered_json::object()}}),
            R"({"z": 1, "a": {"y": true, "b": null}, "list": [1, "\n", -2, 0.5], "none": {}})");
}

TEST(JsonLine, WritesNumbersAndStringsAsJsonNumberAndJsonQuote) {
  EXPECT_EQ(json_line(nlohmann::ordered_json::array({1e5, 2.0, 1.0 / 3, std::nan(""), kInfinity})),
            "[1e+05, 2, 0.3333333333333333, null, null]");
  EXPECT_EQ(json_line("\xFF"), "\"\xEF\xBF\xBD\"");
  EXPECT_EQ(json_line(std::uint64_t{18446744073709551615u}), "18446744073709551615");
}

}  // namespace
}  // namespace weft

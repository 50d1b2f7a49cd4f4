#include "weft/base/json/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "weft/base/testing/refusal.h"

namespace weft {
namespace {

void expect_corrupt(const std::string& text, const std::string& what,
                    const JsonLimits& limits = {}) {
  expect_refused([&] { parse_json(text, "x.json", limits); }, Errc::kCorrupt, what);
}

TEST(ParseJson, GivesTheDocument) {
  const auto document =
      parse_json(R"( {"a": [1, -2, 0.5, true, null], "b": "\u00e9\ud83d\ude00"} )", "x.json");
  EXPECT_EQ(document["a"], nlohmann::json::array({1, -2, 0.5, true, nullptr}));
  EXPECT_EQ(document["b"], "é😀");
}

TEST(ParseJson, RefusesTextThatIsNotJsonNamingTheFileAndThePlace) {
  expect_corrupt("", "x.json: not JSON");
  expect_corrupt(R"({"a":1}x)", "line 1, column 8");
  expect_corrupt("{\"a\":\n1,}", "line 2, column 3");
  for (const char* bad : {"[1,]", "[01]", "[+1]", "[.5]", "[1.]", "[NaN]", "['a']", "{a:1}",
                          "// a\n1", R"(["\q"])", R"(["\ud800"])", "[\"a\nb\"]", "[1e999]"}) {
    expect_corrupt(bad, "not JSON");
  }
}

TEST(ParseJson, RefusesBytesThatAreNotUtf8) {
  for (const char* bad : {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    expect_corrupt(std::string("[\"") + bad + "\"]", "UTF-8");
  }
}

TEST(ParseJson, RefusesAZeroByteInsteadOfEndingThere) {
  expect_corrupt(std::string("{}\0x", 4), "zero byte");
}

TEST(ParseJson, QuotesOnlyTheBeginningOfALongMistake) {
  const std::string what = refusal(
      [] { parse_json("[\"" + std::string(100'000, 'a') + "\x01\"]", "x.json"); }, Errc::kCorrupt);
  EXPECT_LT(what.size(), 300u);
}

TEST(ParseJson, RefusesDeepNesting) {
  const auto nested = [](int depth) {
    return std::string(static_cast<std::size_t>(depth), '[') +
           std::string(static_cast<std::size_t>(depth), ']');
  };
  parse_json(nested(32), "x.json");
  expect_corrupt(nested(33), "nested deeper than 32");
  expect_corrupt(std::string(1'000'000, '['), "nested deeper than 32");
  expect_corrupt(R"({"a":{"b":[1]}})", "nested deeper than 2", {.depth = 2});
  parse_json(R"({"a":{"b":[1]}})", "x.json", {.depth = 3});
}

TEST(ParseJson, RefusesADuplicateKeyIfKeysMustBeUnique) {
  EXPECT_EQ(parse_json(R"({"a":1,"a":2})", "x.json")["a"], 2);
  expect_corrupt(R"({"a":1,"\u0061":2})", R"(the key "a" occurs twice)", {.unique_keys = true});
  expect_corrupt(R"({"b":{"a":1,"c":[{"a":2}],"a":3}})", R"(the key "a" occurs twice)",
                 {.unique_keys = true});
  parse_json(R"({"a":{"a":[{"a":1},{"a":2}]},"b":{"a":1}})", "x.json", {.unique_keys = true});
}

}  // namespace
}  // namespace weft

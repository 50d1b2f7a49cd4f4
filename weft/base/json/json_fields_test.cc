#include "weft/base/json/json_fields.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace weft {
namespace json_fields_test {

enum class Color { kRed, kBlue };

struct Leaf {
  double size = 0;
  Color color = Color::kRed;
  bool operator==(const Leaf&) const = default;
};

template <class Visit>
void each_field(Leaf& o, Visit&& visit) {
  visit("size", o.size);
  visit("color", o.color);
}

struct Tree {
  std::string name;
  int height = 0;
  bool is_old = false;
  std::set<int> rings;
  Leaf first;
  std::optional<Leaf> last;
  std::map<int, Leaf> leaves;
  std::map<int, std::string> notes;
  std::vector<std::string> birds;
  bool operator==(const Tree&) const = default;
};

template <class Visit>
void each_field(Tree& o, Visit&& visit) {
  visit("name", o.name);
  visit("height_m", o.height);
  visit("is_old", o.is_old);
  visit("rings", o.rings);
  visit("first", o.first);
  visit("last", o.last);
  visit("leaves", o.leaves);
  visit("notes", o.notes);
  visit("birds", o.birds);
}

const Tree kTree{.name = "oak",
                 .height = 30,
                 .is_old = true,
                 .rings = {1, 5},
                 .first = {0.5, Color::kBlue},
                 .last = Leaf{2, Color::kRed},
                 .leaves = {{-1, {3, Color::kBlue}}, {12, {}}},
                 .notes = {{2, "tall"}},
                 .birds = {"owl", "jay"}};

TEST(JsonFields, WriteEachFieldUnderItsNameAndMapsAsObjects) {
  EXPECT_EQ(fields_to_json(kTree).dump(),
            R"({"birds":["owl","jay"],"first":{"color":1,"size":0.5},"height_m":30,"is_old":true,)"
            R"("last":{"color":0,"size":2.0},)"
            R"("leaves":{"-1":{"color":1,"size":3.0},"12":{"color":0,"size":0.0}},)"
            R"("name":"oak","notes":{"2":"tall"},"rings":[1,5]})");
}

TEST(JsonFields, WriteNullForAnEmptyOptionalAndAnEmptyObjectForAnEmptyMap) {
  const nlohmann::json object = fields_to_json(Tree{});
  EXPECT_TRUE(object.at("last").is_null());
  EXPECT_EQ(object.at("leaves").dump(), "{}");
}

TEST(JsonFields, ReadTheStructThatWasWritten) {
  EXPECT_EQ(fields_from_json<Tree>(fields_to_json(kTree)), kTree);
  EXPECT_EQ(fields_from_json<Tree>(fields_to_json(Tree{})), Tree{});
}

TEST(JsonFields, IgnoreOtherKeys) {
  nlohmann::json object = fields_to_json(kTree);
  object["owner"] = "nobody";
  EXPECT_EQ(fields_from_json<Tree>(object), kTree);
}

TEST(JsonFields, RefuseAMissingKeyAndAValueOfAnotherType) {
  const nlohmann::json whole = fields_to_json(kTree);
  for (const auto& [name, value] : whole.items()) {
    nlohmann::json object = whole;
    object.erase(name);
    EXPECT_THROW(fields_from_json<Tree>(object), nlohmann::json::out_of_range) << name;
  }
  nlohmann::json object = whole;
  object["height_m"] = "high";
  EXPECT_THROW(fields_from_json<Tree>(object), nlohmann::json::type_error);
  object = whole;
  object["notes"]["x"] = "no number";
  EXPECT_THROW(fields_from_json<Tree>(object), std::invalid_argument);
  EXPECT_THROW(fields_from_json<Tree>(nlohmann::json::array()), nlohmann::json::type_error);
}

}  // namespace json_fields_test
}  // namespace weft

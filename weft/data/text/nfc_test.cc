#include "weft/data/text/internal/nfc.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "weft/base/file.h"

namespace weft::data::text::internal {
namespace {

TEST(Nfc, GivesWhatCPythonGives) {
  const auto rows = nlohmann::json::parse(read_file(WEFT_REFERENCE "nfc.json", 1 << 20));
  ASSERT_GT(rows.size(), 400u);
  for (const auto& row : rows)
    EXPECT_EQ(nfc(row[0].get<std::string>()), row[1].get<std::string>()) << row[0];
}

TEST(Nfc, LeavesBytesThatAreNotUtf8AsTheyAre) {
  // "e" and the acute do not compose, because an invalid byte separates them.
  EXPECT_EQ(nfc("e\xff\xcc\x81"), "e\xff\xcc\x81");
  EXPECT_EQ(nfc("\xcc"), "\xcc");
  EXPECT_EQ(nfc("e\xcc\x81\xed\xa0\x80"), "\xc3\xa9\xed\xa0\x80");
}

// U+11A7 is not a trailing consonant (The Unicode Standard, 3.12). utf8proc 2.8 treats it as one
// and drops it.
TEST(Nfc, KeepsTheVowelBeforeTheTrailingConsonants) {
  EXPECT_EQ(nfc("\uac00\u11a7"), "\uac00\u11a7");
  EXPECT_EQ(nfc("\u1100\u1161\u11a7\u1100\u1161\u11a8"), "\uac00\u11a7\uac01");
  EXPECT_EQ(nfc("\u11a7"), "\u11a7");
}

}  // namespace
}  // namespace weft::data::text::internal

#include "weft/base/kind/file_kind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace file_kind_test {

using testing::HasSubstr;
using testing::Optional;
using namespace std::string_view_literals;

TEST(FileKind, NamesPointersEncodingsAndOtherFormatsWithTheirRemedy) {
  EXPECT_THAT(wrong_kind("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 3\n"),
              Optional(HasSubstr("git lfs pull")));
  EXPECT_THAT(wrong_kind("/annex/objects/SHA256E-s1--ab.safetensors\n"),
              Optional(HasSubstr("git annex get")));
  EXPECT_THAT(wrong_kind("\xFF\xFEh\0i\0"sv), Optional(HasSubstr("iconv -f UTF-16 ")));
  EXPECT_THAT(wrong_kind("\xFE\xFF\0h\0i"sv), Optional(HasSubstr("iconv -f UTF-16 ")));
  EXPECT_THAT(wrong_kind("\xFF\xFE\0\0h\0\0\0"sv), Optional(HasSubstr("UTF-32")));
  EXPECT_THAT(wrong_kind("PK\x03\x04rest"), Optional(HasSubstr("PyTorch")));
  EXPECT_THAT(wrong_kind("\x1F\x8B\x08"), Optional(HasSubstr("gzip")));
  EXPECT_THAT(wrong_kind("GGUF\3\0\0\0"sv), Optional(HasSubstr("GGUF")));
}

TEST(FileKind, AcceptsTextAndSafetensors) {
  EXPECT_EQ(wrong_kind(""), std::nullopt);
  for (const char* text : {"version 2 of the story", "GGUF files", "PAR1S", "BZh wrote"})
    EXPECT_EQ(wrong_kind(text), std::nullopt) << text;
  EXPECT_EQ(wrong_kind("\x40\0\0\0\0\0\0\0{\"a\":"sv), std::nullopt);
}

TEST(FileKind, DoubtsTextThatIsNotUtf8ButNotACharacterThatIsCut) {
  EXPECT_EQ(doubt_of_text("caf\xC3\xA9", true), std::nullopt);
  EXPECT_EQ(doubt_of_text("caf\xC3", false), std::nullopt);
  EXPECT_THAT(doubt_of_text("caf\xC3", true), Optional(HasSubstr("from byte 3 on")));
  EXPECT_THAT(doubt_of_text("caf\xE9 au lait", false), Optional(HasSubstr("from byte 3 on")));
  EXPECT_THAT(doubt_of_text("h\0i\0"sv, true), Optional(HasSubstr("UTF-16")));
}

TEST(FileKind, FindsTheByteOrderMarkOfUtf8) {
  EXPECT_EQ(mark_bytes("\xEF\xBB\xBFtext"), 3U);
  EXPECT_EQ(mark_bytes("text"), 0U);
}

}  // namespace file_kind_test
}  // namespace weft

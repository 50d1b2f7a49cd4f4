#include "weft/base/svg/svg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/testing/decimal_comma.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

TEST(Svg, WritesElementsInOrderWithNumbersInOneFormat) {
  Svg svg("%.1f");
  svg.begin("g", {{"class", "p0"}}).element("circle", {{"cx", 8.25}, {"cy", 9}, {"r", "4"}});
  svg.text_at(1, 2, "dim small", "rank 0").newline().end("g");
  EXPECT_EQ(svg.str(),
            "<g class=\"p0\"><circle cx=\"8.2\" cy=\"9.0\" r=\"4\"/>"
            "<text class=\"dim small\" x=\"1.0\" y=\"2.0\">rank 0</text>\n</g>");
  EXPECT_EQ(Svg("%.3g").points({{1, 2.5}, {3, 4}}), "1,2.5 3,4");
  EXPECT_EQ(svg.translation(1, 2), "translate(1.0 2.0)");
}

TEST(Svg, WritesADecimalPointInEachLocale) {
  const DecimalComma locale;
  EXPECT_EQ(Svg("%.1f").points({{1.5, 2}, {3, 4}}), "1.5,2.0 3.0,4.0");
}

TEST(Svg, EscapesTextsAndAttributes) {
  EXPECT_EQ(escape_markup("a<b> & \"c\" é"), "a&lt;b&gt; &amp; &quot;c&quot; é");
  EXPECT_EQ(Svg("%g").text({{"class", "\"><"}}, "a<b & c").str(),
            "<text class=\"&quot;&gt;&lt;\">a&lt;b &amp; c</text>");
}

TEST(Svg, WritesAPageThatFollowsTheReadersTheme) {
  Svg svg("%g");
  svg.begin_page({.width = 200,
                  .height = 100,
                  .title = "A & B",
                  .description = "Two.",
                  .style = {.text = "stroke:none",
                            .rules = ".small{font-size:12px}",
                            .colors = [](const SvgTheme& theme) {
                              return theme.rules() + (theme.dark ? ".n{}" : ".l{}");
                            }}});
  const std::string text = svg.end_page();
  EXPECT_THAT(text, HasSubstr("viewBox=\"0 0 200 100\" width=\"200\" height=\"100\">\n<title "
                              "id=\"t\">A &amp; B</title>\n<desc id=\"d\">Two.</desc>\n<style>"));
  EXPECT_THAT(text, HasSubstr("sans-serif;stroke:none}.small{font-size:12px}.paper{fill:#ffffff}"));
  EXPECT_THAT(text, HasSubstr(".l{}@media (prefers-color-scheme:dark){.paper{fill:#12161c}"));
  EXPECT_THAT(text, HasSubstr(".n{}}</style>\n<rect class=\"paper\" width=\"200\" "
                              "height=\"100\"/>\n</svg>\n"));
}

}  // namespace
}  // namespace weft

// Writes a picture as SVG, element by element. Texts and attributes are escaped.
//
//   Svg svg("%.1f");
//   svg.begin_page({.width = 200, .height = 100, .title = "Ring", .description = "…", .style = …});
//   svg.begin("g", {{"class", "p0"}}).element("circle", {{"cx", 8.5}, {"cy", 9}, {"r", 4}});
//   svg.end("g");
//   return svg.end_page();
//
// Costs one allocation for each element; for pictures that people look at.
#pragma once

#include <concepts>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace weft {

// Text for SVG and HTML: & < > and " are replaced.
std::string escape_markup(std::string_view text);

// Colors of a page for readers with a light or a dark theme.
struct SvgTheme {
  bool dark;
  const char *paper, *ink, *dim;
  // Rules that fill the classes paper, ink and dim.
  std::string rules() const;
};

// The style sheet of a page. It follows the reader's theme.
struct SvgStyle {
  std::string text;   // Properties of all text beside the font family: "stroke:none".
  std::string rules;  // Rules that do not depend on the theme.
  std::function<std::string(const SvgTheme&)> colors;  // Rules that do.
};

struct SvgPage {
  double width, height;
  std::string title, description;  // Read out by screen readers.
  SvgStyle style;
};

struct SvgAttribute {
  SvgAttribute(const char* key, double number) : name(key), value(number) {}
  SvgAttribute(const char* key, std::integral auto number)
      : SvgAttribute(key, static_cast<double>(number)) {}
  SvgAttribute(const char* key, std::string text) : name(key), value(std::move(text)) {}
  SvgAttribute(const char* key, const char* text) : SvgAttribute(key, std::string(text)) {}

  const char* name;
  std::variant<double, std::string> value;
};
using SvgAttributes = std::vector<SvgAttribute>;

class Svg {
 public:
  // `format`: of printf(), for every number.
  explicit Svg(const char* format) : format_(format) {}

  // A file with a title, a style sheet and a paper that fills it.
  Svg& begin_page(const SvgPage& page);
  // Returns the file.
  std::string end_page();

  Svg& begin(std::string_view name, const SvgAttributes& attributes = {});
  Svg& end(std::string_view name);
  Svg& element(std::string_view name, const SvgAttributes& attributes);  // Without content.
  Svg& content(std::string_view text);
  // An element that contains a text.
  Svg& text(const SvgAttributes& attributes, std::string_view content);
  Svg& text_at(double x, double y, const std::string& classes, std::string_view content);
  Svg& heading(std::string_view content);  // At the top left of a page.
  Svg& newline();
  Svg& append(const Svg& part);

  std::string number(double value) const;
  // "1.0,2.0 3.0,4.0".
  std::string points(std::initializer_list<std::pair<double, double>> points) const;
  std::string translation(double x, double y) const;
  const std::string& str() const { return text_; }

 private:
  void open(std::string_view name, const SvgAttributes& attributes);

  const char* format_;
  std::string text_;
};

}  // namespace weft

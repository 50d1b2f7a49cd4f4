#include "weft/base/svg/svg.h"

#include "weft/base/text/numbers.h"

namespace weft {
namespace {

constexpr SvgTheme kLight{false, "#ffffff", "#1c2128", "#667080"};
constexpr SvgTheme kDark{true, "#12161c", "#e8ecf1", "#97a3b2"};

}  // namespace

std::string escape_markup(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

std::string SvgTheme::rules() const {
  return std::string(".paper{fill:") + paper + "}.ink{fill:" + ink + "}.dim{fill:" + dim + "}";
}

Svg& Svg::begin_page(const SvgPage& page) {
  begin("svg", {{"xmlns", "http://www.w3.org/2000/svg"},
                {"role", "img"},
                {"aria-labelledby", "t d"},
                {"viewBox", "0 0 " + number(page.width) + " " + number(page.height)},
                {"width", page.width},
                {"height", page.height}});
  newline().begin("title", {{"id", "t"}}).content(page.title).end("title");
  newline().begin("desc", {{"id", "d"}}).content(page.description).end("desc").newline();
  const SvgStyle& style = page.style;
  text_ += "<style>text{font-family:system-ui,'Segoe UI',Helvetica,Arial,sans-serif" +
           (style.text.empty() ? "" : ";" + style.text) + "}" + style.rules + style.colors(kLight) +
           "@media (prefers-color-scheme:dark){" + style.colors(kDark) + "}</style>\n";
  element("rect", {{"class", "paper"}, {"width", page.width}, {"height", page.height}});
  return newline();
}

std::string Svg::end_page() { return end("svg").newline().text_; }

Svg& Svg::begin(std::string_view name, const SvgAttributes& attributes) {
  open(name, attributes);
  text_ += ">";
  return *this;
}

Svg& Svg::end(std::string_view name) {
  text_.append("</").append(name).append(">");
  return *this;
}

Svg& Svg::element(std::string_view name, const SvgAttributes& attributes) {
  open(name, attributes);
  text_ += "/>";
  return *this;
}

Svg& Svg::content(std::string_view text) {
  text_ += escape_markup(text);
  return *this;
}

Svg& Svg::text(const SvgAttributes& attributes, std::string_view content) {
  return begin("text", attributes).content(content).end("text");
}

Svg& Svg::text_at(double x, double y, const std::string& classes, std::string_view content) {
  return text({{"class", classes}, {"x", x}, {"y", y}}, content);
}

Svg& Svg::heading(std::string_view content) {
  return text(
      {{"class", "ink"}, {"x", "16"}, {"y", "32"}, {"font-size", "19"}, {"font-weight", "600"}},
      content);
}

Svg& Svg::newline() {
  text_ += "\n";
  return *this;
}

Svg& Svg::append(const Svg& part) {
  text_ += part.text_;
  return *this;
}

std::string Svg::number(double value) const { return formatted(format_, value); }

std::string Svg::points(std::initializer_list<std::pair<double, double>> points) const {
  std::string text;
  for (const auto& [x, y] : points) text += (text.empty() ? "" : " ") + number(x) + "," + number(y);
  return text;
}

std::string Svg::translation(double x, double y) const {
  return "translate(" + number(x) + " " + number(y) + ")";
}

void Svg::open(std::string_view name, const SvgAttributes& attributes) {
  text_.append("<").append(name);
  for (const SvgAttribute& attribute : attributes) {
    const auto* const number_value = std::get_if<double>(&attribute.value);
    text_ += std::string(" ") + attribute.name + "=\"" +
             (number_value != nullptr ? number(*number_value)
                                      : escape_markup(std::get<std::string>(attribute.value))) +
             "\"";
  }
}

}  // namespace weft

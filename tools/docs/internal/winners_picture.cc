#include "tools/docs/internal/winners_picture.h"

#include <algorithm>
#include <set>

#include "weft/base/svg/svg.h"

namespace weft::docs::internal {
namespace {

using schedule::Algorithm;

constexpr int kSmallest = 10, kLargest = 28, kStep = 2;  // sizes: powers of two
constexpr double kLeft = 106, kTop = 74, kCellWidth = 64, kCellHeight = 30, kHead = 48,
                 kBetween = 34, kLegendLine = 24;
constexpr int kColumns = (kLargest - kSmallest) / kStep + 1;
constexpr double kWidth = kLeft + kColumns * kCellWidth + 16;

void rect(Svg& svg, const std::string& classes, double x, double y, double width, double height) {
  svg.element(
      "rect",
      {{"class", classes}, {"x", x}, {"y", y}, {"width", width}, {"height", height}, {"rx", 3}});
}

// The color of an algorithm, the same in all maps. The hues of adjacent enumerators are far apart.
std::string color(Algorithm algorithm, bool dark) {
  const int hue = (212 + 131 * static_cast<int>(algorithm)) % 360;
  return "hsl(" + std::to_string(hue) + ", " + (dark ? "42%, 34%" : "62%, 82%") + ")";
}

std::string class_of(Algorithm algorithm) {
  return "a" + std::to_string(static_cast<int>(algorithm));
}

SvgStyle style(const std::set<Algorithm>& used) {
  return {.text = "font-size:12px",
          .rules = ".middle{text-anchor:middle}.end{text-anchor:end}.cell{font-size:11px}",
          .colors = [used](const SvgTheme& theme) {
            std::string text = theme.rules();
            for (const Algorithm algorithm : used)
              text += "." + class_of(algorithm) + "{fill:" + color(algorithm, theme.dark) + "}";
            return text;
          }};
}

struct Drawing {
  Svg svg{"%.6g"};
  std::set<Algorithm> used;
};

void draw(const Panel& panel, schedule::Collective collective, double y, Drawing& drawing) {
  Svg& svg = drawing.svg;
  svg.text_at(16, y + 12, "ink", panel.title).newline();
  for (int c = 0; c < kColumns; ++c) {
    const std::int64_t bytes = std::int64_t{1} << (kSmallest + c * kStep);
    svg.text_at(kLeft + (c + 0.5) * kCellWidth, y + 36, "dim middle", byte_size(bytes));
  }
  double top = y + kHead;
  for (const Panel::Row& row : panel.rows) {
    svg.newline().text_at(kLeft - 10, top + 0.5 * kCellHeight + 4, "dim end", row.name);
    for (int c = 0; c < kColumns; ++c) {
      const Winner won =
          winner(collective, row.topology, std::int64_t{1} << (kSmallest + c * kStep));
      const double x = kLeft + c * kCellWidth;
      drawing.used.insert(won.algorithm);
      rect(svg, class_of(won.algorithm), x + 1, top + 1, kCellWidth - 2, kCellHeight - 2);
      svg.text_at(x + 0.5 * kCellWidth, top + 0.5 * kCellHeight + 4, "ink cell middle",
                  duration(won.seconds));
    }
    top += kCellHeight;
  }
  svg.newline();
}

// The legend, in lines that fit the width of the picture. Returns the position below it.
double legend(Drawing& drawing, double y) {
  double x = 16;
  for (const Algorithm algorithm : drawing.used) {
    const std::string name = to_string(algorithm);
    if (x + 28 + 7.2 * static_cast<double>(name.size()) > kWidth) {
      x = 16;
      y += kLegendLine;
    }
    rect(drawing.svg, class_of(algorithm), x, y, 22, 14);
    drawing.svg.text_at(x + 28, y + 11, "ink", name);
    x += 28 + 7.2 * static_cast<double>(name.size()) + 18;
  }
  drawing.svg.newline();
  return y + kLegendLine;
}

}  // namespace

std::string winners_svg(schedule::Collective collective, const std::vector<Panel>& panels) {
  Drawing drawing;
  double y = kTop;
  for (const Panel& panel : panels) {
    draw(panel, collective, y, drawing);
    y += kHead + kCellHeight * static_cast<double>(panel.rows.size()) + kBetween;
  }
  std::string name = to_string(collective);
  std::replace(name.begin(), name.end(), '_', '-');
  const std::string title = "The fastest " + name;
  Svg svg("%.6g");
  svg.begin_page({.width = kWidth,
                  .height = legend(drawing, y) + 6,
                  .title = title,
                  .description = "Maps of the algorithm that ends first: sizes to the right, "
                                 "worlds downwards, a color for each algorithm, the time written "
                                 "in.",
                  .style = style(drawing.used)});
  svg.text(
      {{"class", "ink"}, {"x", 16}, {"y", 32}, {"style", "font-size:19px"}, {"font-weight", "600"}},
      title);
  svg.text_at(16, 54, "dim",
              "Color: the algorithm that ends first. Number: when it ends. Columns: bytes of the "
              "array.");
  svg.newline().append(drawing.svg);
  return svg.end_page();
}

}  // namespace weft::docs::internal

#include "tools/docs/internal/winners_picture.h"

#include <algorithm>
#include <cstdio>
#include <set>

namespace weft::docs::internal {
namespace {

using schedule::Algorithm;

constexpr int kSmallest = 10, kLargest = 28, kStep = 2;  // sizes: powers of two
constexpr double kLeft = 106, kTop = 74, kCellWidth = 64, kCellHeight = 30, kHead = 48,
                 kBetween = 34, kLegendLine = 24;
constexpr int kColumns = (kLargest - kSmallest) / kStep + 1;
constexpr double kWidth = kLeft + kColumns * kCellWidth + 16;

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string text_at(double x, double y, const std::string& classes, const std::string& text) {
  return "<text class=\"" + classes + "\" x=\"" + number(x) + "\" y=\"" + number(y) + "\">" + text +
         "</text>";
}

std::string rect(const std::string& classes, double x, double y, double width, double height) {
  return "<rect class=\"" + classes + "\" x=\"" + number(x) + "\" y=\"" + number(y) +
         "\" width=\"" + number(width) + "\" height=\"" + number(height) + "\" rx=\"3\"/>";
}

// The color of an algorithm, the same in all maps. The hues of adjacent enumerators are far apart.
std::string color(Algorithm algorithm, bool dark) {
  const int hue = (212 + 131 * static_cast<int>(algorithm)) % 360;
  return "hsl(" + std::to_string(hue) + ", " + (dark ? "42%, 34%" : "62%, 82%") + ")";
}

std::string class_of(Algorithm algorithm) {
  return "a" + std::to_string(static_cast<int>(algorithm));
}

std::string style(const std::set<Algorithm>& used) {
  const auto ground = [&](bool dark) {
    const char *paper = dark ? "#12161c" : "#ffffff", *ink = dark ? "#e8ecf1" : "#1c2128",
               *dim = dark ? "#97a3b2" : "#667080";
    std::string text =
        std::string(".paper{fill:") + paper + "}.ink{fill:" + ink + "}.dim{fill:" + dim + "}";
    for (const Algorithm algorithm : used)
      text += "." + class_of(algorithm) + "{fill:" + color(algorithm, dark) + "}";
    return text;
  };
  return "<style>text{font-family:system-ui,'Segoe "
         "UI',Helvetica,Arial,sans-serif;font-size:12px}.middle{text-anchor:middle}"
         ".end{text-anchor:end}.cell{font-size:11px}" +
         ground(false) + "@media (prefers-color-scheme:dark){" + ground(true) + "}</style>\n";
}

struct Drawing {
  std::string text;
  std::set<Algorithm> used;
};

void draw(const Panel& panel, schedule::Collective collective, double y, Drawing& drawing) {
  drawing.text += text_at(16, y + 12, "ink", panel.title) + "\n";
  for (int c = 0; c < kColumns; ++c) {
    const std::int64_t bytes = std::int64_t{1} << (kSmallest + c * kStep);
    drawing.text += text_at(kLeft + (c + 0.5) * kCellWidth, y + 36, "dim middle", byte_size(bytes));
  }
  double top = y + kHead;
  for (const Panel::Row& row : panel.rows) {
    drawing.text += "\n" + text_at(kLeft - 10, top + 0.5 * kCellHeight + 4, "dim end", row.name);
    for (int c = 0; c < kColumns; ++c) {
      const Winner won =
          winner(collective, row.topology, std::int64_t{1} << (kSmallest + c * kStep));
      const double x = kLeft + c * kCellWidth;
      drawing.used.insert(won.algorithm);
      drawing.text +=
          rect(class_of(won.algorithm), x + 1, top + 1, kCellWidth - 2, kCellHeight - 2) +
          text_at(x + 0.5 * kCellWidth, top + 0.5 * kCellHeight + 4, "ink cell middle",
                  duration(won.seconds));
    }
    top += kCellHeight;
  }
  drawing.text += "\n";
}

// The legend, in lines that fit the width of the picture. Moves y below it.
std::string legend(const std::set<Algorithm>& used, double& y) {
  std::string text;
  double x = 16;
  for (const Algorithm algorithm : used) {
    const std::string name = to_string(algorithm);
    if (x + 28 + 7.2 * static_cast<double>(name.size()) > kWidth) {
      x = 16;
      y += kLegendLine;
    }
    text += rect(class_of(algorithm), x, y, 22, 14) + text_at(x + 28, y + 11, "ink", name);
    x += 28 + 7.2 * static_cast<double>(name.size()) + 18;
  }
  y += kLegendLine;
  return text + "\n";
}

}  // namespace

std::string winners_svg(schedule::Collective collective, const std::vector<Panel>& panels) {
  Drawing drawing;
  double y = kTop;
  for (const Panel& panel : panels) {
    draw(panel, collective, y, drawing);
    y += kHead + kCellHeight * static_cast<double>(panel.rows.size()) + kBetween;
  }
  const std::string marks = legend(drawing.used, y);
  const double height = y + 6;
  std::string name = to_string(collective);
  std::replace(name.begin(), name.end(), '_', '-');
  const std::string title = "The fastest " + name;
  const std::string size = number(kWidth) + "\" height=\"" + number(height) + "\"";
  std::string text =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" aria-labelledby=\"t d\" viewBox=\"0 "
      "0 " +
      number(kWidth) + " " + number(height) + "\" width=\"" + size + ">\n<title id=\"t\">" + title +
      "</title>\n<desc id=\"d\">Maps of the algorithm that ends first: sizes to the right, worlds "
      "downwards, a color for "
      "each algorithm, the time written in.</desc>\n";
  text += style(drawing.used) + "<rect class=\"paper\" width=\"" + size + "/>\n";
  text += "<text class=\"ink\" x=\"16\" y=\"32\" style=\"font-size:19px\" font-weight=\"600\">" +
          title + "</text>";
  text += text_at(16, 54, "dim",
                  "Color: the algorithm that ends first. Number: when it ends. Columns: bytes of "
                  "the array.") +
          "\n";
  return text + drawing.text + marks + "</svg>\n";
}

}  // namespace weft::docs::internal

// Draws gossip graphs. Ranks stand on a circle, or in the rows of a grid. There is one panel for
// each distinct round.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numbers>

#include "weft/base/error.h"
#include "weft/base/text/words.h"
#include "weft/schedule/internal/near_square.h"
#include "weft/schedule/pictures/pictures.h"

namespace weft::schedule {
namespace {

constexpr int kMaxDrawn = 64;
constexpr int kFirst = 8;  // ranks that are listed if the world is too large

std::string format_number(double value, const char* format = "%.4g") {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string heading(const Gossip& gossip) {
  std::string name = to_string(gossip.graph);
  std::replace(name.begin(), name.end(), '_', '-');
  return "Gossip, " + name + (gossip.graph == Graph::kRandomMatching ? "" : " graph");
}

std::string summary(const Gossip& gossip) {
  if (gossip.world == 1) return "1 rank: nothing to average";
  std::size_t most = 0;
  for (int rank = 0; rank < std::min(gossip.world, kMaxDrawn); ++rank)
    most = std::max(most, mixing(gossip, rank, 0).sends_to.size());
  const double rate = mixing_rate(gossip);
  const std::string rounds = std::to_string(rounds_to_thousandth(gossip));
  return counted(gossip.world, "rank") + ", " + counted(most, "message") +
         " a rank and round; mixing rate " + format_number(rate) + ": " +
         (rate == 0
              ? "all have the average after " + rounds + (rounds == "1" ? " round" : " rounds")
              : "a thousand times nearer to the average after " + rounds + " rounds");
}

std::string list(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

std::string line(const Gossip& gossip, int rank, int round) {
  const Mixing m = mixing(gossip, rank, round);
  std::vector<int> heard;
  for (const Neighbor& n : m.hears) heard.push_back(n.rank);
  std::string text = "rank " + std::to_string(rank) + "  keeps " + format_number(m.self);
  if (heard.empty()) return text + "\n";
  text += ", hears " + list(heard) + " with " + format_number(m.hears[0].weight) +
          (heard.size() > 1 ? " each" : "");
  return text +
         (heard == m.sends_to ? ", and they hear it\n" : ", sends to " + list(m.sends_to) + "\n");
}

struct Point {
  double x, y;
};

constexpr double kPanel = 264, kTop = 84, kNode = 13, kRadius = 102;

// Positions of the ranks within a panel.
std::vector<Point> places(const Gossip& gossip) {
  std::vector<Point> result;
  const auto [rows, columns, wraps] = internal::near_square(gossip.world);
  const double step = std::min(62.0, 2 * kRadius / std::max(1, columns - 1));
  for (int rank = 0; rank < gossip.world; ++rank) {
    if (gossip.graph == Graph::kGrid) {
      const int row = rank / columns, column = rank % columns;
      result.push_back({0.5 * kPanel + (column - 0.5 * (columns - 1)) * step,
                        0.5 * kPanel + (row - 0.5 * (rows - 1)) * step});
      continue;
    }
    const double angle = 2 * std::numbers::pi * rank / gossip.world - 0.5 * std::numbers::pi;
    result.push_back(
        {0.5 * kPanel + kRadius * std::cos(angle), 0.5 * kPanel + kRadius * std::sin(angle)});
  }
  return result;
}

double node_radius(const Gossip& gossip) {
  return gossip.world > 32 ? 7 : gossip.world > 16 ? 9 : kNode;
}

std::string segment(Point a, Point b, const char* kind) {
  return "<line class=\"" + std::string(kind) + "\" x1=\"" + format_number(a.x) + "\" y1=\"" +
         format_number(a.y) + "\" x2=\"" + format_number(b.x) + "\" y2=\"" + format_number(b.y) +
         "\"/>";
}

// A line from the edge of one node to the edge of the other, with an arrowhead if only `to` hears.
std::string edge(Point from, Point to, double node, bool both) {
  const double length = std::hypot(to.x - from.x, to.y - from.y), dx = (to.x - from.x) / length,
               dy = (to.y - from.y) / length;
  const Point a{from.x + dx * node, from.y + dy * node},
      b{to.x - dx * (node + 1), to.y - dy * (node + 1)};
  if (both) return segment(a, b, "edge") + "\n";
  const double head = 0.75 * node, half = 0.36 * head;
  const Point base{b.x - dx * head, b.y - dy * head};
  return segment(a, base, "edge") + "<polygon class=\"head\" points=\"" + format_number(b.x) + "," +
         format_number(b.y) + " " + format_number(base.x - dy * half) + "," +
         format_number(base.y + dx * half) + " " + format_number(base.x + dy * half) + "," +
         format_number(base.y - dx * half) + "\"/>\n";
}

// A link that wraps around the grid, drawn as a dashed end on each side.
std::string wrapping(Point from, Point to, double node) {
  const bool level = from.y == to.y;
  const auto stub = [&](Point at, Point other) {
    const double dx = level ? (at.x < other.x ? -1 : 1) : 0,
                 dy = level ? 0 : (at.y < other.y ? -1 : 1);
    return segment({at.x + dx * node, at.y + dy * node},
                   {at.x + dx * (node + 14), at.y + dy * (node + 14)}, "edge far");
  };
  return stub(from, to) + stub(to, from) + "\n";
}

std::string panel(const Gossip& gossip, int round) {
  const std::vector<Point> at = places(gossip);
  const double node = node_radius(gossip);
  const int columns = internal::near_square(gossip.world).columns;
  std::string text;
  for (int rank = 0; rank < gossip.world; ++rank) {
    const Mixing m = mixing(gossip, rank, round);
    for (const Neighbor& n : m.hears) {
      const bool both = std::find(m.sends_to.begin(), m.sends_to.end(), n.rank) != m.sends_to.end();
      if (both && n.rank > rank) continue;  // drawn for the other rank
      const Point from = at[static_cast<std::size_t>(n.rank)],
                  to = at[static_cast<std::size_t>(rank)];
      const int apart = std::abs(rank - n.rank);
      const bool wraps = gossip.graph == Graph::kGrid && apart != 1 && apart != columns;
      text += wraps ? wrapping(from, to, node) : edge(from, to, node, both);
    }
  }
  for (int rank = 0; rank < gossip.world; ++rank) {
    const Point p = at[static_cast<std::size_t>(rank)];
    text += "<circle class=\"node\" cx=\"" + format_number(p.x) + "\" cy=\"" + format_number(p.y) +
            "\" r=\"" + format_number(node) + "\"/><text class=\"label\" x=\"" +
            format_number(p.x) + "\" y=\"" + format_number(p.y + 0.32 * node) + "\" font-size=\"" +
            format_number(0.88 * node) + "\">" + std::to_string(rank) + "</text>\n";
  }
  return text;
}

std::string style() {
  const auto ground = [](const char* paper, const char* ink, const char* dim, const char* node,
                         const char* edge) {
    return std::string(".paper,.label{fill:") + paper + "}.ink{fill:" + ink + "}.dim{fill:" + dim +
           "}.node,.head{fill:" + node + "}.edge{stroke:" + edge + "}.head{fill:" + edge + "}";
  };
  return "<style>text{font-family:system-ui,'Segoe "
         "UI',Helvetica,Arial,sans-serif}.label{font-weight:600;text-anchor:middle}.dim{"
         "font-size:12px}.edge{stroke-width:1.7}.far{stroke-dasharray:3 3}" +
         ground("#ffffff", "#1c2128", "#667080", "#2a67b4", "#7f97b8") +
         "@media (prefers-color-scheme:dark){" +
         ground("#12161c", "#e8ecf1", "#97a3b2", "#83aeea", "#5b7396") + "}</style>\n";
}

}  // namespace

std::string render_text(const Gossip& gossip) {
  std::string text = heading(gossip) + "\n" + summary(gossip) + "\n";
  if (gossip.world == 1) return text;
  const int shown = gossip.world <= kMaxDrawn ? gossip.world : kFirst;
  for (int round = 0; round < distinct_rounds(gossip); ++round) {
    text += distinct_rounds(gossip) > 1 ? "\nround " + std::to_string(round) + "\n" : "\n";
    for (int rank = 0; rank < shown; ++rank) text += line(gossip, rank, round);
    if (shown < gossip.world) text += "… and " + std::to_string(gossip.world - shown) + " more\n";
  }
  return text;
}

std::string render_svg(const Gossip& gossip) {
  WEFT_REQUIRE(gossip.world <= kMaxDrawn, "a graph of " + std::to_string(gossip.world) +
                                              " ranks is more than can be drawn, " +
                                              std::to_string(kMaxDrawn));
  const int rounds = distinct_rounds(gossip);
  const std::string words = summary(gossip);
  const double width =
      std::max({16 + rounds * kPanel + 16, 660.0, 32 + 6.6 * static_cast<double>(words.size())});
  const bool titled = rounds > 1;
  const double height = kTop + kPanel + (titled ? 18 : 0);
  const std::string size = format_number(width) + "\" height=\"" + format_number(height) + "\"";
  std::string text =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" aria-labelledby=\"t d\" viewBox=\"0 "
      "0 " +
      format_number(width) + " " + format_number(height) + "\" width=\"" + size +
      ">\n<title id=\"t\">" + heading(gossip) + "</title>\n<desc id=\"d\">" + words +
      ". Ranks are circles, lines lead to those that hear them.</desc>\n" + style() +
      "<rect class=\"paper\" width=\"" + size +
      "/>\n<text class=\"ink\" x=\"16\" y=\"32\" font-size=\"19\" font-weight=\"600\">" +
      heading(gossip) + "</text><text class=\"dim\" x=\"16\" y=\"54\">" + words + "</text>\n";
  const double apart = rounds > 1 ? (width - 32 - kPanel) / (rounds - 1) : 0;
  for (int round = 0; round < rounds; ++round) {
    const double x = rounds > 1 ? 16 + round * apart : 0.5 * (width - kPanel);
    if (titled) {
      text += "<text class=\"dim\" text-anchor=\"middle\" x=\"" + format_number(x + 0.5 * kPanel) +
              "\" y=\"" + format_number(kTop + 4) + "\">round " + std::to_string(round) +
              "</text>\n";
    }
    text += "<g transform=\"translate(" + format_number(x) + " " +
            format_number(kTop + (titled ? 8 : -8)) + ")\">\n" + panel(gossip, round) + "</g>\n";
  }
  return text + "</svg>\n";
}

}  // namespace weft::schedule

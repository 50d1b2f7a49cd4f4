// Draws gossip graphs. Ranks stand on a circle, or in the rows of a grid. There is one panel for
// each distinct round.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "weft/base/error.h"
#include "weft/base/svg/svg.h"
#include "weft/base/text/words.h"
#include "weft/schedule/internal/near_square.h"
#include "weft/schedule/pictures/pictures.h"

namespace weft::schedule {
namespace {

constexpr int kMaxDrawn = 64;
constexpr int kFirst = 8;  // ranks that are listed if the world is too large

// Four significant digits, also in the picture.
constexpr const char* kFormat = "%.4g";
std::string format_number(double value) { return Svg(kFormat).number(value); }

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

std::string line(const Gossip& gossip, int rank, int round) {
  const Mixing m = mixing(gossip, rank, round);
  std::vector<int> heard;
  for (const Neighbor& n : m.hears) heard.push_back(n.rank);
  std::string text = "rank " + std::to_string(rank) + "  keeps " + format_number(m.self);
  if (heard.empty()) return text + "\n";
  text += ", hears " + joined(heard) + " with " + format_number(m.hears[0].weight) +
          (heard.size() > 1 ? " each" : "");
  return text +
         (heard == m.sends_to ? ", and they hear it\n" : ", sends to " + joined(m.sends_to) + "\n");
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

Svg& segment(Svg& svg, Point a, Point b, const char* kind) {
  return svg.element("line", {{"class", kind}, {"x1", a.x}, {"y1", a.y}, {"x2", b.x}, {"y2", b.y}});
}

// A line from the edge of one node to the edge of the other, with an arrowhead if only `to` hears.
void edge(Svg& svg, Point from, Point to, double node, bool both) {
  const double length = std::hypot(to.x - from.x, to.y - from.y), dx = (to.x - from.x) / length,
               dy = (to.y - from.y) / length;
  const Point a{from.x + dx * node, from.y + dy * node},
      b{to.x - dx * (node + 1), to.y - dy * (node + 1)};
  const double head = 0.75 * node, half = 0.36 * head;
  const Point base{b.x - dx * head, b.y - dy * head};
  segment(svg, a, both ? b : base, "edge");
  if (!both)
    svg.element("polygon", {{"class", "head"},
                            {"points", svg.points({{b.x, b.y},
                                                   {base.x - dy * half, base.y + dx * half},
                                                   {base.x + dy * half, base.y - dx * half}})}});
  svg.newline();
}

// A link that wraps around the grid, drawn as a dashed end on each side.
void wrapping(Svg& svg, Point from, Point to, double node) {
  const bool level = from.y == to.y;
  const auto stub = [&](Point at, Point other) {
    const double dx = level ? (at.x < other.x ? -1 : 1) : 0,
                 dy = level ? 0 : (at.y < other.y ? -1 : 1);
    segment(svg, {at.x + dx * node, at.y + dy * node},
            {at.x + dx * (node + 14), at.y + dy * (node + 14)}, "edge far");
  };
  stub(from, to);
  stub(to, from);
  svg.newline();
}

void panel(Svg& svg, const Gossip& gossip, int round) {
  const std::vector<Point> at = places(gossip);
  const double node = node_radius(gossip);
  const int columns = internal::near_square(gossip.world).columns;
  for (int rank = 0; rank < gossip.world; ++rank) {
    const Mixing m = mixing(gossip, rank, round);
    for (const Neighbor& n : m.hears) {
      const bool both = std::find(m.sends_to.begin(), m.sends_to.end(), n.rank) != m.sends_to.end();
      if (both && n.rank > rank) continue;  // drawn for the other rank
      const Point from = at[static_cast<std::size_t>(n.rank)],
                  to = at[static_cast<std::size_t>(rank)];
      const int apart = std::abs(rank - n.rank);
      const bool wraps = gossip.graph == Graph::kGrid && apart != 1 && apart != columns;
      if (wraps)
        wrapping(svg, from, to, node);
      else
        edge(svg, from, to, node, both);
    }
  }
  for (int rank = 0; rank < gossip.world; ++rank) {
    const Point p = at[static_cast<std::size_t>(rank)];
    svg.element("circle", {{"class", "node"}, {"cx", p.x}, {"cy", p.y}, {"r", node}});
    svg.text({{"class", "label"}, {"x", p.x}, {"y", p.y + 0.32 * node}, {"font-size", 0.88 * node}},
             std::to_string(rank))
        .newline();
  }
}

SvgStyle style() {
  return {.rules =
              ".label{font-weight:600;text-anchor:middle}.dim{font-size:12px}.edge{stroke-"
              "width:1.7}.far{stroke-dasharray:3 3}",
          .colors = [](const SvgTheme& theme) {
            const std::string edge = theme.dark ? "#5b7396" : "#7f97b8";
            return std::string(".paper,.label{fill:") + theme.paper + "}.ink{fill:" + theme.ink +
                   "}.dim{fill:" + theme.dim +
                   "}.node,.head{fill:" + (theme.dark ? "#83aeea" : "#2a67b4") +
                   "}.edge{stroke:" + edge + "}.head{fill:" + edge + "}";
          }};
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
  Svg svg(kFormat);
  svg.begin_page({.width = width,
                  .height = kTop + kPanel + (titled ? 18 : 0),
                  .title = heading(gossip),
                  .description = words + ". Ranks are circles, lines lead to those that hear them.",
                  .style = style()});
  svg.heading(heading(gossip)).text_at(16, 54, "dim", words).newline();
  const double apart = rounds > 1 ? (width - 32 - kPanel) / (rounds - 1) : 0;
  for (int round = 0; round < rounds; ++round) {
    const double x = rounds > 1 ? 16 + round * apart : 0.5 * (width - kPanel);
    if (titled) {
      svg.text({{"class", "dim"},
                {"text-anchor", "middle"},
                {"x", x + 0.5 * kPanel},
                {"y", kTop + 4}},
               "round " + std::to_string(round))
          .newline();
    }
    svg.begin("g", {{"transform", svg.translation(x, kTop + (titled ? 8 : -8))}}).newline();
    panel(svg, gossip, round);
    svg.end("g").newline();
  }
  return svg.end_page();
}

}  // namespace weft::schedule

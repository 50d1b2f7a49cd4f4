#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "weft/base/svg/svg.h"
#include "weft/base/text/words.h"
#include "weft/schedule/pictures/internal/picture.h"
#include "weft/schedule/pictures/pictures.h"

namespace weft::schedule {
namespace {

using internal::Arrow;
using internal::Picture;

// All numbers of a picture have one decimal.
std::string one_decimal(double value) { return Svg("%.1f").number(value); }

// Sizes in pixels. Many ranks or many messages per round are drawn smaller.
struct Layout {
  explicit Layout(const Picture& picture) {
    const Topology* topology = picture.request.topology.get();
    top = picture.traffic.empty() ? kTop : kTop + 18;  // below the line on the levels
    left = kLeft + kBracket * (topology ? topology->num_levels() - 1 : 0);
    std::vector<int> slots(picture.cost.rounds + 1, 1);
    for (const Arrow& arrow : picture.arrows)
      slots[arrow.round] = std::max(slots[arrow.round], arrow.slot + 1);
    const int most = *std::max_element(slots.begin(), slots.end());
    const bool dense = picture.request.world > 16 || most > 16;
    std::size_t longest = 1;
    for (const Arrow& arrow : picture.arrows) longest = std::max(longest, arrow.label.size());
    bead = dense ? 7 : 10;
    font = dense ? 8 : 11.5;
    row = dense ? 24 : 48;
    slot = dense ? 30 : most > 2 ? 48 : 66;
    slot += longest > 2 ? 2.2 * bead : 0;  // beads of "0–3" are longer
    clear = longest > 2 ? 2.9 * bead : 1.9 * bead;
    // A short schedule fills the width that its heading needs anyway.
    const double total = std::accumulate(slots.begin() + 1, slots.end(), 0);
    const double room = kNarrowest - kRight - left - 16 - picture.cost.rounds * kGap;
    if (total > 0) slot = std::max(slot, std::min(110.0, room / total));
    columns.push_back(left + 16);
    for (int round = 1; round <= picture.cost.rounds; ++round)
      columns.push_back(columns.back() + slots[round] * slot + kGap);
    bottom = place_rows(picture.request);
    const std::size_t letters =
        std::max(internal::summary(picture).size(), internal::levels_line(picture).size());
    const double legend = 600 + 180.0 * static_cast<double>(picture.traffic.size());
    width = std::max({columns.back() + kRight, kNarrowest,
                      16 + kLetter * static_cast<double>(letters) + kRight,
                      picture.traffic.empty() ? 0 : legend});
    height = bottom + 92;
  }
  double x(const Arrow& arrow) const { return columns[arrow.round - 1] + kGap + arrow.slot * slot; }
  double y(int rank) const { return rows[static_cast<std::size_t>(rank)]; }

  // Places the ranks of a group next to each other, with a gap between groups. Returns the position
  // of the last row.
  double place_rows(const Request& q) {
    rows.resize(static_cast<std::size_t>(q.world));
    double at = top;
    for (int place = 0; place < q.world; ++place) {
      const int rank = q.topology ? q.topology->order()[static_cast<std::size_t>(place)] : place;
      if (place > 0) at += row;
      if (place > 0 && q.topology) {
        const int before = q.topology->order()[static_cast<std::size_t>(place - 1)];
        at += 0.3 * row * (q.topology->num_levels() - 1 - q.topology->level_of(before, rank));
      }
      rows[static_cast<std::size_t>(rank)] = at;
    }
    return at;
  }

  static constexpr double kLeft = 66;
  static constexpr double kBracket = 26;  // width of a level's brackets, left of the ranks
  static constexpr double kTop = 112;
  static constexpr double kRight = 24;
  static constexpr double kNarrowest = 660;
  static constexpr double kLetter = 6.8;  // largest width of a letter in small text
  static constexpr double kGap = 22;      // gap between rounds
  double bead, font, row, slot, left, top, clear;
  std::vector<double> rows;     // by rank
  std::vector<double> columns;  // where round r + 1 begins
  double bottom, width, height;
};

// Color of a part, darker on a light background. Yellow and green look lighter than other hues, so
// they are drawn darker.
std::string color(int part, int parts, bool dark) {
  const double hue = std::fmod(212 + 360.0 * part / parts, 360);
  const bool bright = hue > 45 && hue < 195;
  const int lightness = dark ? (bright ? 58 : 70) : (bright ? 32 : 45);
  return "hsl(" + std::to_string(static_cast<int>(hue)) + ", 62%, " + std::to_string(lightness) +
         "%)";
}

std::string part_rules(const std::set<int>& used, int parts, bool dark) {
  std::string text;
  for (const int part : used) {
    const std::string c = color(part, parts, dark);
    text += ".p" + std::to_string(part) + "{stroke:" + c + "}.p" + std::to_string(part) +
            " .f{fill:" + c + "}";
  }
  return text;
}

SvgStyle style(const Picture& picture, const Layout& layout) {
  std::set<int> used = {0};
  for (const Arrow& arrow : picture.arrows) used.insert(arrow.part);
  // Links of outer levels are thicker. With only one level, links have the default width.
  std::string widths;
  const int levels = static_cast<int>(picture.traffic.size());
  for (int l = 0; l < levels; ++l)
    widths += ".far" + std::to_string(l) +
              "{stroke-width:" + one_decimal(1.2 + 2.0 * (levels - 1 - l) / (levels - 1)) + "}";
  return {.text = "stroke:none",
          .rules = ".label{font-size:" + one_decimal(layout.font) +
                   "px;font-weight:600;text-anchor:middle}.small{font-size:12px}.rank{stroke-width:"
                   "1.2}.round{stroke-width:1;stroke-dasharray:2 4}.w{stroke-width:" +
                   one_decimal(layout.bead > 8 ? 1.8 : 1.1) +
                   ";fill:none}.read{stroke-dasharray:5 3}" + widths,
          .colors = [used, parts = picture.parts](const SvgTheme& theme) {
            const std::string line = theme.dark ? "#3a434f" : "#c9d0d9", paper = theme.paper;
            return theme.rules() + ".rank{stroke:" + line + "}.round{stroke:" + line +
                   "}.meet{fill:" + theme.dim + "}.label{fill:" + paper + "}.hole{fill:" + paper +
                   "}" + part_rules(used, parts, theme.dark);
          }};
}

void line(Svg& svg, const std::string& classes, double x1, double y1, double x2, double y2) {
  svg.element("line", {{"class", classes}, {"x1", x1}, {"y1", y1}, {"x2", x2}, {"y2", y2}});
}

// The ends of an arrow: a plus in a circle at (x, y), or a head with its tip at (x, y). (dx, dy) is
// the direction of the arrow, of length one.
void plus_at(Svg& svg, double x, double y, double radius) {
  const double arm = radius * 0.55;
  svg.element("circle", {{"class", "w hole"}, {"cx", x}, {"cy", y}, {"r", radius}});
  line(svg, "w", x - arm, y, x + arm, y);
  line(svg, "w", x, y - arm, x, y + arm);
}
void head_at(Svg& svg, double x, double y, double dx, double dy, double length) {
  const double half = length * 0.42;
  const double bx = x - dx * length;
  const double by = y - dy * length;
  svg.element(
      "polygon",
      {{"class", "f"},
       {"stroke", "none"},
       {"points",
        svg.points({{x, y}, {bx - dy * half, by + dx * half}, {bx + dy * half, by - dx * half}})}});
}

void bead_at(Svg& svg, double x, double y, const std::string& label, const Layout& layout) {
  const std::size_t letters = num_characters(label);
  if (letters == 0) {
    svg.element("circle", {{"class", "f"}, {"stroke", "none"}, {"cx", x}, {"cy", y}, {"r", 4}});
    return;
  }
  const double half =
      std::max(layout.bead, 0.32 * layout.font * static_cast<double>(letters) + 0.5 * layout.bead);
  svg.element("rect", {{"class", "f"},
                       {"stroke", "none"},
                       {"x", x - half},
                       {"y", y - layout.bead},
                       {"width", 2 * half},
                       {"height", 2 * layout.bead},
                       {"rx", layout.bead}});
  svg.text_at(x, y + 0.36 * layout.font, "label", label);
}

// Opens the group of a part, which has its color.
Svg& begin_part(Svg& svg, int part) {
  return svg.begin("g", {{"class", "p" + std::to_string(part)}});
}

void wire(Svg& svg, const Arrow& arrow, const Layout& layout) {
  const double x1 = layout.x(arrow);
  const double y1 = layout.y(arrow.source);
  const double x2 = x1 + layout.slot - layout.clear;  // ends before the next slot's bead
  const double y2 = layout.y(arrow.target);
  const double length = std::hypot(x2 - x1, y2 - y1);
  const double dx = (x2 - x1) / length;
  const double dy = (y2 - y1) / length;
  const double end = arrow.reduces ? 0.55 * layout.bead : 0.7 * layout.bead;
  const std::string kind = "w far" + std::to_string(arrow.level) + (arrow.reads ? " read" : "");
  begin_part(svg, arrow.part);
  line(svg, kind, x1, y1, x2 - dx * end, y2 - dy * end);
  if (arrow.reduces)
    plus_at(svg, x2, y2, 0.55 * layout.bead);
  else
    head_at(svg, x2, y2, dx, dy, 0.9 * layout.bead);
  svg.end("g").newline();
}

// A bar along the rows of each group, with the group's name, or only its number if there is no
// room.
void brackets(Svg& svg, const Topology& topology, const Layout& layout) {
  for (int l = 1; l < topology.num_levels(); ++l) {
    const double x = 14 + Layout::kBracket * (l - 1);
    for (int g = 0; g < topology.num_groups(l); ++g) {
      const auto& members = topology.members(l, g);
      const auto [top, bottom] = std::minmax_element(
          members.begin(), members.end(), [&](int a, int b) { return layout.y(a) < layout.y(b); });
      const double from = layout.y(*top) - 0.36 * layout.row,
                   to = layout.y(*bottom) + 0.36 * layout.row;
      std::string name = std::string(to_string(topology.level(l).scope)) + " " + std::to_string(g);
      if (6.5 * static_cast<double>(name.size()) > to - from) name = std::to_string(g);
      svg.element("rect", {{"class", "meet"},
                           {"x", x + 8},
                           {"y", from},
                           {"width", "3"},
                           {"rx", "1.5"},
                           {"height", to - from}});
      svg.text({{"class", "dim small"},
                {"text-anchor", "middle"},
                {"transform", svg.translation(x + 3, (from + to) / 2) + " rotate(-90)"}},
               name)
          .newline();
    }
  }
}

void grid(Svg& svg, const Picture& picture, const Layout& layout) {
  if (picture.request.topology) brackets(svg, *picture.request.topology, layout);
  const double right = layout.columns.back();
  for (int rank = 0; rank < picture.request.world; ++rank) {
    const double y = layout.y(rank);
    svg.text_at(layout.left - 50, y + 4, "ink small", "rank " + std::to_string(rank));
    line(svg, "rank", layout.left, y, right, y);
    svg.newline();
  }
  for (int round = 1; round <= picture.cost.rounds; ++round) {
    const double x = layout.columns[round - 1] + 2, top = layout.top - 36;
    const bool meets = std::count(picture.meetings.begin(), picture.meetings.end(), round) > 0;
    svg.text_at(x + (meets ? 8 : 4), layout.top - 26, "dim small", std::to_string(round));
    if (meets)
      svg.element("rect", {{"class", "meet"},
                           {"x", x - 2},
                           {"y", top},
                           {"width", 5},
                           {"height", layout.bottom + 56 - layout.top},
                           {"rx", 2.5}});
    else
      line(svg, "round", x, top, x, layout.bottom + 20);
    svg.newline();
  }
  svg.text_at(16, layout.top - 26, "dim small", picture.meetings.empty() ? "round" : "meeting");
  svg.newline();
}

// A sample of each mark that occurs, with its meaning.
void legend(Svg& svg, const Picture& picture, const Layout& layout) {
  double x = 16;
  const double y = layout.height - 26;
  // Ends a mark with its meaning.
  const auto means = [&](double mark_width, const std::string& meaning) {
    svg.text_at(x + mark_width + 6, y + 4, "dim small", meaning);
    x += mark_width + 6 + 6.3 * static_cast<double>(meaning.size()) + 22;
  };
  const auto line_means = [&](const std::string& classes, double width, const std::string& what) {
    begin_part(svg, 0);
    line(svg, classes, x, y, x + width, y);
    svg.end("g");
    means(width, what);
  };
  const auto some = [&](auto&& has) {
    return std::any_of(picture.arrows.begin(), picture.arrows.end(), has);
  };
  if (!picture.what.empty() && !picture.arrows.empty()) {
    const std::string meaning =
        picture.parts == 1 ? "the whole array"
                           : picture.what + (picture.what == "part" ? " 0 of the array" : " 0");
    Layout sample = layout;
    sample.bead = 9;
    sample.font = 11;
    const double half = picture.parts == 1 ? 16 : 12;
    begin_part(svg, 0);
    bead_at(svg, x + half, y, picture.parts == 1 ? "all" : "0", sample);
    svg.end("g");
    means(2 * half, meaning);
  }
  if (some([](const Arrow& a) { return a.reduces; })) {
    begin_part(svg, 0);
    line(svg, "w", x, y, x + 22, y);
    plus_at(svg, x + 26, y, 5.5);
    svg.end("g");
    means(32, "is added to what is there");
  }
  if (some([](const Arrow& a) { return !a.reduces; })) {
    begin_part(svg, 0);
    line(svg, "w", x, y, x + 24, y);
    head_at(svg, x + 32, y, 1, 0, 9);
    svg.end("g");
    means(32, picture.what.empty() ? "a message" : "replaces what is there");
  }
  if (some([](const Arrow& a) { return a.reads; })) line_means("w read", 32, "read in place");
  for (std::size_t l = 0; l < picture.traffic.size(); ++l)
    line_means("w far" + std::to_string(l), 28,
               link_name(*picture.request.topology, static_cast<int>(l)));
  if (!picture.meetings.empty()) {
    svg.element("rect", {{"class", "meet"},
                         {"x", x},
                         {"y", y - 9},
                         {"width", "5"},
                         {"height", "18"},
                         {"rx", "2.5"}});
    means(5, "all meet");
  }
  svg.newline();
}

std::string description(const Picture& picture) {
  std::string text = "Space-time diagram: " + internal::summary(picture) +
                     ". Ranks are rows, rounds go to the right.";
  if (picture.what.empty() || picture.arrows.empty()) return text;
  const Arrow& first = picture.arrows.front();
  return text + " First, rank " + std::to_string(first.target) +
         (first.reads ? " reads " : " receives ") +
         (first.label == "all" ? "everything" : picture.what + " " + first.label) + " from rank " +
         std::to_string(first.source) + ".";
}

}  // namespace

std::string render_svg(const Request& request) {
  const Picture picture = internal::picture_of(request);
  const Layout layout(picture);
  Svg svg("%.1f");
  svg.begin_page({.width = layout.width,
                  .height = layout.height,
                  .title = internal::heading(picture),
                  .description = description(picture),
                  .style = style(picture, layout)});
  svg.heading(internal::heading(picture));
  svg.text_at(16, 54, "dim small", internal::summary(picture)).newline();
  if (!picture.traffic.empty())
    svg.text_at(16, 71, "dim small", internal::levels_line(picture)).newline();
  grid(svg, picture, layout);
  for (const Arrow& arrow : picture.arrows) wire(svg, arrow, layout);
  for (const Arrow& arrow : picture.arrows) {
    begin_part(svg, arrow.part);
    bead_at(svg, layout.x(arrow), layout.y(arrow.source), arrow.label, layout);
    svg.end("g").newline();
  }
  legend(svg, picture, layout);
  return svg.end_page();
}

}  // namespace weft::schedule

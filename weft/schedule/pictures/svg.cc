#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <set>
#include <vector>

#include "weft/schedule/pictures/internal/picture.h"
#include "weft/schedule/pictures/pictures.h"

namespace weft::schedule {
namespace {

using internal::Arrow;
using internal::Picture;

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}
std::string attribute(const char* name, double value) {
  return std::string(" ") + name + "=\"" + number(value) + "\"";
}

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

std::string style(const Picture& picture, const Layout& layout) {
  std::set<int> used = {0};
  for (const Arrow& arrow : picture.arrows) used.insert(arrow.part);
  // Links of outer levels are thicker. With only one level, links have the default width.
  std::string widths;
  const int levels = static_cast<int>(picture.traffic.size());
  for (int l = 0; l < levels; ++l)
    widths += ".far" + std::to_string(l) +
              "{stroke-width:" + number(1.2 + 2.0 * (levels - 1 - l) / (levels - 1)) + "}";
  const auto ground = [&](const char* paper, const char* ink, const char* dim, const char* line) {
    return std::string(".paper{fill:") + paper + "}.ink{fill:" + ink + "}.dim{fill:" + dim +
           "}.rank{stroke:" + line + "}.round{stroke:" + line + "}.meet{fill:" + dim +
           "}.label{fill:" + paper + "}.hole{fill:" + paper + "}";
  };
  return "<style>text{font-family:system-ui,'Segoe "
         "UI',Helvetica,Arial,sans-serif;stroke:none}.label{font-size:" +
         number(layout.font) +
         "px;font-weight:600;text-anchor:middle}.small{font-size:12px}.rank{stroke-width:1.2}."
         "round{stroke-width:1;stroke-dasharray:2 4}" +
         ".w{stroke-width:" + number(layout.bead > 8 ? 1.8 : 1.1) +
         ";fill:none}.read{stroke-dasharray:5 3}" + widths +
         ground("#ffffff", "#1c2128", "#667080", "#c9d0d9") +
         part_rules(used, picture.parts, false) + "@media (prefers-color-scheme:dark){" +
         ground("#12161c", "#e8ecf1", "#97a3b2", "#3a434f") +
         part_rules(used, picture.parts, true) + "}</style>\n";
}

std::string text_at(double x, double y, const char* classes, const std::string& text) {
  return "<text class=\"" + std::string(classes) + "\"" + attribute("x", x) + attribute("y", y) +
         ">" + text + "</text>";
}

std::string line(const char* classes, double x1, double y1, double x2, double y2) {
  return "<line class=\"" + std::string(classes) + "\"" + attribute("x1", x1) +
         attribute("y1", y1) + attribute("x2", x2) + attribute("y2", y2) + "/>";
}

// The ends of an arrow: a plus in a circle at (x, y), or a head with its tip at (x, y). (dx, dy) is
// the direction of the arrow, of length one.
std::string plus_at(double x, double y, double radius) {
  const double arm = radius * 0.55;
  return "<circle class=\"w hole\"" + attribute("cx", x) + attribute("cy", y) +
         attribute("r", radius) + "/>" + line("w", x - arm, y, x + arm, y) +
         line("w", x, y - arm, x, y + arm);
}
std::string head_at(double x, double y, double dx, double dy, double length) {
  const double half = length * 0.42;
  const double bx = x - dx * length;
  const double by = y - dy * length;
  return "<polygon class=\"f\" stroke=\"none\" points=\"" + number(x) + "," + number(y) + " " +
         number(bx - dy * half) + "," + number(by + dx * half) + " " + number(bx + dy * half) +
         "," + number(by - dx * half) + "\"/>";
}

std::string bead_at(double x, double y, const std::string& label, const Layout& layout) {
  const auto letters = std::count_if(label.begin(), label.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  });
  if (letters == 0)
    return "<circle class=\"f\" stroke=\"none\"" + attribute("cx", x) + attribute("cy", y) +
           attribute("r", 4) + "/>";
  const double half =
      std::max(layout.bead, 0.32 * layout.font * static_cast<double>(letters) + 0.5 * layout.bead);
  return "<rect class=\"f\" stroke=\"none\"" + attribute("x", x - half) +
         attribute("y", y - layout.bead) + attribute("width", 2 * half) +
         attribute("height", 2 * layout.bead) + attribute("rx", layout.bead) + "/>" +
         text_at(x, y + 0.36 * layout.font, "label", label);
}

std::string wire(const Arrow& arrow, const Layout& layout) {
  const double x1 = layout.x(arrow);
  const double y1 = layout.y(arrow.source);
  const double x2 = x1 + layout.slot - layout.clear;  // ends before the next slot's bead
  const double y2 = layout.y(arrow.target);
  const double length = std::hypot(x2 - x1, y2 - y1);
  const double dx = (x2 - x1) / length;
  const double dy = (y2 - y1) / length;
  const double end = arrow.reduces ? 0.55 * layout.bead : 0.7 * layout.bead;
  const std::string kind = "w far" + std::to_string(arrow.level) + (arrow.reads ? " read" : "");
  return "<g class=\"p" + std::to_string(arrow.part) + "\">" +
         line(kind.c_str(), x1, y1, x2 - dx * end, y2 - dy * end) +
         (arrow.reduces ? plus_at(x2, y2, 0.55 * layout.bead)
                        : head_at(x2, y2, dx, dy, 0.9 * layout.bead)) +
         "</g>\n";
}

// A bar along the rows of each group, with the group's name, or only its number if there is no
// room.
std::string brackets(const Topology& topology, const Layout& layout) {
  std::string text;
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
      text += "<rect class=\"meet\"" + attribute("x", x + 8) + attribute("y", from) +
              " width=\"3\" rx=\"1.5\"" + attribute("height", to - from) + "/>";
      text += "<text class=\"dim small\" text-anchor=\"middle\" transform=\"translate(" +
              number(x + 3) + " " + number((from + to) / 2) + ") rotate(-90)\">" + name +
              "</text>\n";
    }
  }
  return text;
}

std::string grid(const Picture& picture, const Layout& layout) {
  std::string text;
  if (picture.request.topology) text += brackets(*picture.request.topology, layout);
  const double right = layout.columns.back();
  for (int rank = 0; rank < picture.request.world; ++rank) {
    text +=
        text_at(layout.left - 50, layout.y(rank) + 4, "ink small", "rank " + std::to_string(rank));
    text += line("rank", layout.left, layout.y(rank), right, layout.y(rank)) + "\n";
  }
  for (int round = 1; round <= picture.cost.rounds; ++round) {
    const double x = layout.columns[round - 1] + 2;
    const bool meets = std::count(picture.meetings.begin(), picture.meetings.end(), round) > 0;
    text += text_at(x + (meets ? 8 : 4), layout.top - 26, "dim small", std::to_string(round));
    if (!meets) text += line("round", x, layout.top - 36, x, layout.bottom + 20) + "\n";
    if (meets) {
      text += "<rect class=\"meet\"" + attribute("x", x - 2) + attribute("y", layout.top - 36) +
              attribute("width", 5) + attribute("height", layout.bottom + 56 - layout.top) +
              attribute("rx", 2.5) + "/>\n";
    }
  }
  return text +
         text_at(16, layout.top - 26, "dim small", picture.meetings.empty() ? "round" : "meeting") +
         "\n";
}

// A sample of each mark that occurs, with its meaning.
std::string legend(const Picture& picture, const Layout& layout) {
  double x = 16;
  const double y = layout.height - 26;
  std::string text;
  const auto entry = [&](const std::string& mark, double mark_width, const std::string& meaning) {
    text += mark + text_at(x + mark_width + 6, y + 4, "dim small", meaning);
    x += mark_width + 6 + 6.3 * static_cast<double>(meaning.size()) + 22;
  };
  const auto some = [&](auto&& has) {
    return std::any_of(picture.arrows.begin(), picture.arrows.end(), has);
  };
  const std::string open = "<g class=\"p0\">";
  if (!picture.what.empty() && !picture.arrows.empty()) {
    const std::string meaning =
        picture.parts == 1 ? "the whole array"
                           : picture.what + (picture.what == "part" ? " 0 of the array" : " 0");
    Layout sample = layout;
    sample.bead = 9;
    sample.font = 11;
    const std::string label = picture.parts == 1 ? "all" : "0";
    const double half = picture.parts == 1 ? 16 : 12;
    entry(open + bead_at(x + half, y, label, sample) + "</g>", 2 * half, meaning);
  }
  if (some([](const Arrow& a) { return a.reduces; })) {
    entry(open + line("w", x, y, x + 22, y) + plus_at(x + 26, y, 5.5) + "</g>", 32,
          "is added to what is there");
  }
  if (some([](const Arrow& a) { return !a.reduces; })) {
    entry(open + line("w", x, y, x + 24, y) + head_at(x + 32, y, 1, 0, 9) + "</g>", 32,
          picture.what.empty() ? "a message" : "replaces what is there");
  }
  if (some([](const Arrow& a) { return a.reads; }))
    entry(open + line("w read", x, y, x + 32, y) + "</g>", 32, "read in place");
  for (std::size_t l = 0; l < picture.traffic.size(); ++l) {
    entry(open + line(("w far" + std::to_string(l)).c_str(), x, y, x + 28, y) + "</g>", 28,
          link_name(*picture.request.topology, static_cast<int>(l)));
  }
  if (!picture.meetings.empty()) {
    entry("<rect class=\"meet\"" + attribute("x", x) + attribute("y", y - 9) +
              " width=\"5\" height=\"18\" rx=\"2.5\"/>",
          5, "all meet");
  }
  return text + "\n";
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
  const std::string size = number(layout.width) + "\" height=\"" + number(layout.height);
  std::string text =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" aria-labelledby=\"t d\" viewBox=\"0 "
      "0 " +
      number(layout.width) + " " + number(layout.height) + "\" width=\"" + size + "\">\n";
  text += "<title id=\"t\">" + internal::heading(picture) + "</title>\n<desc id=\"d\">" +
          description(picture) + "</desc>\n";
  text += style(picture, layout) + "<rect class=\"paper\" width=\"" + size + "\"/>\n";
  text += "<text class=\"ink\" x=\"16\" y=\"32\" font-size=\"19\" font-weight=\"600\">" +
          internal::heading(picture) + "</text>";
  text += text_at(16, 54, "dim small", internal::summary(picture)) + "\n";
  if (!picture.traffic.empty())
    text += text_at(16, 71, "dim small", internal::levels_line(picture)) + "\n";
  text += grid(picture, layout);
  for (const Arrow& arrow : picture.arrows) text += wire(arrow, layout);
  for (const Arrow& arrow : picture.arrows) {
    text += "<g class=\"p" + std::to_string(arrow.part) + "\">" +
            bead_at(layout.x(arrow), layout.y(arrow.source), arrow.label, layout) + "</g>\n";
  }
  return text + legend(picture, layout) + "</svg>\n";
}

}  // namespace weft::schedule

#include <algorithm>
#include <set>

#include "weft/base/svg/svg.h"
#include "weft/schedule/pipeline/pictures/internal/picture.h"
#include "weft/schedule/pipeline/pictures/pictures.h"

namespace weft::schedule::pipeline {
namespace {

using internal::Picture;

// Sizes in pixels. A unit of time is at least as wide as the label of the shortest action.
struct Layout {
  explicit Layout(const Picture& picture) {
    const Request& q = picture.schedule.request;
    const double units = picture.timing.makespan / picture.unit;
    const std::size_t digits = std::to_string(q.micro_batches - 1).size();
    small = q.virtual_stages > 1;
    const double narrowest = 12 + 7.0 * static_cast<double>(digits);
    unit = std::clamp((kNarrowest - kLeft - kRight) / units, narrowest, 40.0);
    row = small ? 40 : 32;
    height = kTop + row * q.ranks + 66;
    chart = units * unit;
    width = std::max({kNarrowest, kLeft + chart + kRight,
                      32 + kLetter * static_cast<double>(summary(q).size())});
  }
  double x(const Picture& picture, double time) const { return kLeft + time / picture.unit * unit; }
  double y(std::size_t rank) const { return kTop + row * static_cast<double>(rank); }

  static constexpr double kLeft = 66;
  static constexpr double kTop = 84;
  static constexpr double kRight = 150;  // room for the idle share and the micro-batches held
  static constexpr double kNarrowest = 660;
  static constexpr double kLetter = 6.4;
  bool small;  // each box names its stage in a second, smaller line
  double unit, row, chart, width, height;
};

// Okabe and Ito's colors: blue, vermilion, orange and bluish green. They are lighter for a rank's
// earlier stages. Labels are black, but white on dark blue, where white has more contrast.
struct Color {
  int hue, saturation, lightness;
};
Color color_of(Work work) {
  switch (work) {
    case Work::kForward: return {202, 100, 35};         // blue
    case Work::kBackward: return {26, 100, 42};         // vermilion
    case Work::kBackwardInput: return {41, 100, 50};    // orange
    case Work::kBackwardWeight: return {164, 100, 31};  // bluish green
  }
  return {0, 0, 50};
}

std::string class_of(const Request& q, const Action& action) {
  const int local = q.algorithm == Algorithm::kZeroBubbleV ? (action.stage >= q.ranks ? 1 : 0)
                                                           : action.stage / q.ranks;
  return std::string(1, internal::letter_of(action.work)) + std::to_string(local);
}

std::string rule(const Request& q, const Action& action) {
  const Color c = color_of(action.work);
  const std::string name = class_of(q, action);
  // The first of several stages is the lightest. The last one has the color itself.
  const int local = std::stoi(name.substr(1));
  const int lighter =
      (q.virtual_stages - 1 - local) * std::min(18, 36 / std::max(1, q.virtual_stages - 1));
  const int lightness = c.lightness + lighter;
  const bool white = action.work == Work::kForward && lightness < 44;
  return ".b" + name + "{fill:hsl(" + std::to_string(c.hue) + "," +
         std::to_string(c.saturation - 2 * lighter) + "%," + std::to_string(lightness) + "%)}.t" +
         name + "{fill:" + (white ? "#ffffff" : "#000000") + "}";
}

SvgStyle style(const Picture& picture) {
  std::string rules;
  std::set<std::string> seen;
  for (const auto& actions : picture.schedule.actions) {
    for (const Action& action : actions) {
      if (seen.insert(class_of(picture.schedule.request, action)).second)
        rules += rule(picture.schedule.request, action);
    }
  }
  return {.rules =
              ".small{font-size:12px}.n{font-size:12px;font-weight:600;text-anchor:middle}.s{"
              "font-size:9px;text-anchor:middle}.box{stroke-width:1}.mid{text-anchor:middle}",
          .colors = [rules](const SvgTheme& theme) {
            return theme.rules() + ".idle{fill:" + (theme.dark ? "#262d36" : "#eceff3") +
                   "}.box{stroke:" + theme.paper + "}" + (theme.dark ? "" : rules);
          }};
}

void box(Svg& svg, const Picture& picture, const Layout& layout, std::size_t rank, std::size_t i) {
  const Request& q = picture.schedule.request;
  const Action& action = picture.schedule.actions[rank][i];
  const Span& span = picture.timing.spans[rank][i];
  const double x = layout.x(picture, span.begin), end = layout.x(picture, span.end),
               y = layout.y(rank), middle = (x + end) / 2;
  const std::string kind = class_of(q, action);
  svg.element("rect", {{"class", "box b" + kind},
                       {"x", x},
                       {"y", y},
                       {"width", end - x},
                       {"height", layout.row - 6},
                       {"rx", "2"}});
  svg.text_at(middle, y + 17, "n t" + kind, std::to_string(action.micro_batch));
  if (layout.small)
    svg.text_at(middle, y + 29, "s t" + kind,
                internal::letter_of(action.work) + std::to_string(action.stage));
  svg.newline();
}

void lines(Svg& svg, const Picture& picture, const Layout& layout) {
  const bool trains = picture.schedule.request.algorithm != Algorithm::kForwardOnly;
  for (std::size_t rank = 0; rank < picture.held.size(); ++rank) {
    const double y = layout.y(rank);
    svg.text_at(16, y + 17, "ink small", "rank " + std::to_string(rank));
    svg.element("rect", {{"class", "idle"},
                         {"x", Layout::kLeft},
                         {"y", y},
                         {"width", layout.chart},
                         {"height", layout.row - 6}});
    const std::string held = trains ? ", holds " + std::to_string(picture.held[rank]) : "";
    svg.text_at(Layout::kLeft + layout.chart + 10, y + 17, "dim small",
                internal::percent(picture.timing.idle[rank]) + " idle" + held)
        .newline();
    for (std::size_t i = 0; i < picture.timing.spans[rank].size(); ++i)
      box(svg, picture, layout, rank, i);
  }
}

// Labels the time at about eight places.
void axis(Svg& svg, const Picture& picture, const Layout& layout) {
  const double y = layout.y(picture.held.size()) + 10;
  svg.text_at(16, y, "dim small", "time");
  const double units = picture.timing.makespan / picture.unit;
  const int step = std::max(1, static_cast<int>(units / 8 + 0.5));
  for (int tick = 0; tick <= units + 1e-9; tick += step) {
    const double time = tick * picture.unit;
    svg.text_at(layout.x(picture, time), y, "dim small mid", internal::decimal(time));
  }
  svg.newline();
}

void legend(Svg& svg, const Picture& picture, const Layout& layout) {
  constexpr const char* kMeaning[] = {"forward", "backward", "backward of the input",
                                      "backward of the weights"};
  const Request& q = picture.schedule.request;
  std::set<Work> used;
  for (const auto& actions : picture.schedule.actions) {
    for (const Action& action : actions) used.insert(action.work);
  }
  double x = 16;
  const double y = layout.height - 20;
  const auto sample = [&](const std::string& classes) {
    svg.element("rect", {{"class", classes},
                         {"x", x},
                         {"y", y - 13},
                         {"width", "20"},
                         {"height", "18"},
                         {"rx", "2"}});
  };
  const auto means = [&](const std::string& meaning) {
    svg.text_at(x + 26, y, "dim small", meaning);
    x += 26 + 6.4 * static_cast<double>(meaning.size()) + 20;
  };
  for (const Work work : used) {
    const std::string letter(1, internal::letter_of(work)),
        kind = letter + std::to_string(q.virtual_stages - 1);
    sample("box b" + kind);
    svg.text_at(x + 10, y, "n t" + kind, letter);
    means(kMeaning[static_cast<int>(work)]);
  }
  sample("idle");
  means("idle");
  if (q.virtual_stages > 1)
    svg.text_at(x, y, "dim small", "below the micro-batch: its stage; a rank's first are lighter");
  svg.newline();
}

}  // namespace

std::string render_svg(const Request& request) {
  const Picture picture = internal::picture_of(request);
  const Layout layout(picture);
  Svg svg("%.1f");
  svg.begin_page({.width = layout.width,
                  .height = layout.height,
                  .title = heading(request),
                  .description = "Time line: " + summary(request) +
                                 ". Ranks are rows, time goes to the right, boxes carry the number "
                                 "of their micro-batch.",
                  .style = style(picture)});
  svg.heading(heading(request)).text_at(16, 54, "dim small", summary(request)).newline();
  lines(svg, picture, layout);
  axis(svg, picture, layout);
  legend(svg, picture, layout);
  return svg.end_page();
}

}  // namespace weft::schedule::pipeline

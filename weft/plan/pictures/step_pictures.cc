// Charts of a step as SVG. Colors are variables of the page's style sheet.
#include <algorithm>
#include <array>
#include <cmath>

#include "weft/base/svg/svg.h"
#include "weft/base/text/numbers.h"
#include "weft/plan/pictures/step_page.h"

namespace weft::plan {
namespace {

using schedule::pipeline::Span;
using schedule::pipeline::Work;

constexpr double kWidth = 760;
constexpr int kMaxRows = 32;  // Ranks that a picture shows.
constexpr std::size_t kMaxBoxes = 3000;

Svg begin_chart(double height, const char* label) {
  const Svg whole("%.0f");
  Svg svg("%.1f");
  svg.begin("svg", {{"viewBox", "0 0 " + whole.number(kWidth) + " " + whole.number(height)},
                    {"role", "img"},
                    {"aria-label", label}});
  return svg.newline();
}

// `title`: shown at the pointer. `stroke`: a line around the box.
void box(Svg& svg, double x, double y, double w, double h, const std::string& fill,
         const std::string& title = {}, bool stroke = false) {
  const Svg fine("%.2f");  // Boxes may be narrow.
  SvgAttributes attributes = {{"x", fine.number(x)},
                              {"y", fine.number(y)},
                              {"width", fine.number(std::max(0.0, w))},
                              {"height", fine.number(h)},
                              {"fill", "var(--" + fill + ")"}};
  if (stroke) {
    attributes.emplace_back("stroke", "var(--panel)");
    attributes.emplace_back("stroke-width", "0.7");
  }
  if (title.empty())
    svg.element("rect", attributes).newline();
  else
    svg.begin("rect", attributes).begin("title").content(title).end("title").end("rect").newline();
}

void label(Svg& svg, double x, double y, const std::string& text, const char* anchor) {
  svg.text({{"x", x}, {"y", y}, {"text-anchor", anchor}}, text).newline();
}

void line(Svg& svg, const char* kind, std::pair<double, double> from,
          std::pair<double, double> to) {
  svg.element("line", {{"class", kind},
                       {"x1", from.first},
                       {"y1", from.second},
                       {"x2", to.first},
                       {"y2", to.second}})
      .newline();
}

std::string short_number(double value, const char* unit) {
  return formatted("%.3g %s", value, unit);
}

std::string seconds_label(double seconds) {
  if (seconds >= 1) return short_number(seconds, "s");
  return seconds >= 1e-3 ? short_number(seconds * 1e3, "ms") : short_number(seconds * 1e6, "us");
}

const char* color_of(Work work) {
  switch (work) {
    case Work::kForward: return "forward";
    case Work::kBackwardWeight: return "weight";
    default: return "backward";
  }
}

// Ranks that are shown, of `count`: all, or the first and the last ones.
std::vector<int> shown(int count) {
  std::vector<int> rows;
  for (int r = 0; r < count; ++r)
    if (count <= kMaxRows || r < kMaxRows / 2 || r >= count - kMaxRows / 2) rows.push_back(r);
  return rows;
}

struct Scale {
  double left, right, end;
  double x(double seconds) const { return left + (right - left) * seconds / end; }
};

// A thin axis of time with five labels.
void time_axis(Svg& svg, const Scale& scale, double y) {
  for (int i = 0; i <= 4; ++i) {
    const double at = scale.end * i / 4, x = scale.x(at);
    line(svg, "grid", {x, 14}, {x, y});
    label(svg, x, y + 14, seconds_label(at), i == 4 ? "end" : "middle");
  }
}

// Boxes of one rank. Narrow ones next to each other of one kind join, so that large schedules stay
// small pictures.
void row_boxes(Svg& svg, const Step& step, std::size_t rank, double y, const Scale& scale) {
  const auto& spans = step.timing.spans[rank];
  const auto& actions = step.schedule.actions[rank];
  const double least = spans.size() > kMaxBoxes / 8 ? 0.8 : 0;
  for (std::size_t i = 0; i < spans.size();) {
    Span span = spans[i];
    std::size_t next = i + 1;
    while (next < spans.size() && scale.x(span.end) - scale.x(span.begin) < least)
      span.end = spans[next++].end;
    const double x = scale.x(span.begin), w = scale.x(span.end) - x;
    box(svg, x, y, w, 16, color_of(actions[i].work),
        describe(actions[i]) + ", " + seconds_label(span.end - span.begin), w > 3);
    i = next;
  }
}

}  // namespace

std::string timeline_svg(const Step& step) {
  if (step.timing.spans.empty()) return "";
  const std::vector<int> rows = shown(static_cast<int>(step.timing.spans.size()));
  const double height = 24 + 20 * static_cast<double>(rows.size()) + 26;
  const Parts& p = step.parts;
  // Without the micro-batches that the schedule leaves out.
  double end = 0;
  for (const auto& spans : step.timing.spans) end = std::max(end, spans.back().end);
  end += p.gradients + p.sharding_after + p.optimizer;
  const Scale scale{64, kWidth - 8, end};
  Svg svg = begin_chart(height, "Timeline of a step");
  time_axis(svg, scale, height - 24);
  double y = 18;
  int last = -1;
  for (const int rank : rows) {
    const std::string gap = rank == last + 1 ? "" : "… ";
    label(svg, 58, y + 12, gap + "rank " + std::to_string(rank), "end");
    row_boxes(svg, step, static_cast<std::size_t>(rank), y, scale);
    // After the last backward: gradients and shards, then the optimizer.
    double at = step.timing.spans[static_cast<std::size_t>(rank)].back().end;
    const double exchange = std::min(p.gradients + p.sharding_after, end - at);
    if (exchange > 0)
      box(svg, scale.x(at), y, scale.x(at + exchange) - scale.x(at), 16, "exchange",
          "gradients and shards, " + seconds_label(exchange));
    at += std::max(0.0, exchange);
    const double optimizer = std::min(p.optimizer, end - at);
    if (optimizer > 0)
      box(svg, scale.x(at), y, scale.x(at + optimizer) - scale.x(at), 16, "optimizer",
          "optimizer, " + seconds_label(optimizer));
    y += 20;
    last = rank;
  }
  return svg.end_page();
}

std::string memory_svg(const Step& step) {
  if (step.memory.empty()) return "";
  const std::vector<int> rows = shown(static_cast<int>(step.memory.size()));
  double most = 0;
  for (std::size_t r = 0; r < step.memory.size(); ++r)
    most = std::max({most, step.memory[r].total(), step.capacity[r]});
  const double height = 12 + 20 * static_cast<double>(rows.size()) + 26;
  const Scale scale{64, kWidth - 70, most};
  Svg svg = begin_chart(height, "Memory by rank");
  double y = 6;
  for (const int rank : rows) {
    const Memory& m = step.memory[static_cast<std::size_t>(rank)];
    const std::pair<double, const char*> parts[] = {
        {m.weights, "weights"},     {m.gradients, "gradients"},
        {m.optimizer, "optimizer"}, {m.activations, "activations"},
        {m.transient, "transient"}, {m.fragmentation + m.context, "rest"}};
    label(svg, 58, y + 12, "rank " + std::to_string(rank), "end");
    double at = 0;
    for (const auto& [bytes, name] : parts) {
      if (bytes <= 0) continue;
      box(svg, scale.x(at), y, scale.x(at + bytes) - scale.x(at), 16, std::string("m-") + name,
          std::string(name) + ", " + short_number(bytes / kGiB, "GiB"));
      at += bytes;
    }
    const double capacity = scale.x(step.capacity[static_cast<std::size_t>(rank)]);
    line(svg, "capacity", {capacity, y - 2}, {capacity, y + 18});
    label(svg, kWidth - 4, y + 12, short_number(at / kGiB, "GiB"), "end");
    y += 20;
  }
  label(svg, scale.x(step.capacity[0]), y + 12, "capacity", "end");
  return svg.end_page();
}

std::string sensitivity_svg(const std::vector<Change>& changes) {
  if (changes.empty()) return "";
  double most = 0.05;
  for (const Change& c : changes) most = std::max(most, std::fabs(c.throughput - 1));
  const double height = 10 + 20 * static_cast<double>(changes.size()), middle = 430, reach = 230;
  Svg svg = begin_chart(height, "Sensitivity of the throughput");
  line(svg, "grid", {middle, 0}, {middle, height});
  double y = 6;
  for (const Change& c : changes) {
    const double by = c.throughput - 1, w = reach * std::fabs(by) / most;
    label(svg, 170, y + 12, c.what, "end");
    box(svg, by < 0 ? middle - w : middle, y, w, 15, by < 0 ? "worse" : "better");
    label(svg, by < 0 ? middle - w - 5 : middle + w + 5, y + 12, formatted("%+.1f %%", 100 * by),
          by < 0 ? "end" : "start");
    y += 20;
  }
  return svg.end_page();
}

std::string knee_svg(const Knee& knee) {
  std::vector<KneePoint> points;
  for (const KneePoint& p : knee.points)
    if (p.seconds > 0) points.push_back(p);
  if (points.size() < 2) return "";
  const double first = points.front().samples_per_s, devices = points.front().devices;
  const double right = std::log2(points.back().devices / devices),
               top = std::log2(points.back().devices / devices) + 0.3;
  const auto x = [&](const KneePoint& p) {
    return 70 + (kWidth - 110) * std::log2(p.devices / devices) / right;
  };
  const auto y = [&](double speedup) {
    return 190 - 160 * std::log2(std::max(speedup, 0.5)) / top;
  };
  Svg svg = begin_chart(230, "Throughput over the number of devices");
  line(svg, "ideal", {x(points.front()), y(1)},
       {x(points.back()), y(points.back().devices / devices)});
  std::string path;
  for (const KneePoint& p : points) {
    const double at = y(p.samples_per_s / first);
    path += (path.empty() ? "M" : "L") + svg.points({{x(p), at}});
    svg.element("circle", {{"cx", x(p)}, {"cy", at}, {"r", 4}, {"fill", "var(--forward)"}});
    svg.newline();
    label(svg, x(p), 214, std::to_string(p.devices), "middle");
    label(svg, x(p), at + 18, formatted("%.3g/s, %.0f %%", p.samples_per_s, 100 * p.efficiency),
          &p == &points.front() ? "start" : "end");
  }
  svg.element("path",
              {{"d", path}, {"fill", "none"}, {"stroke", "var(--forward)"}, {"stroke-width", "2"}})
      .newline();
  label(svg, kWidth - 6, 228, "devices", "end");
  return svg.end_page();
}

}  // namespace weft::plan

// Charts of a step as SVG. Colors are variables of the page's style sheet.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "weft/plan/pictures/step_page.h"

namespace weft::plan {
namespace {

using schedule::pipeline::Span;
using schedule::pipeline::Work;

constexpr double kWidth = 760;
constexpr int kMaxRows = 32;  // Ranks that a picture shows.
constexpr std::size_t kMaxBoxes = 3000;

std::string tag(const char* format, double a, double b, double c, double d) {
  char text[256];
  std::snprintf(text, sizeof text, format, a, b, c, d);
  return text;
}

std::string svg_open(double height, const char* label) {
  return tag("<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"", kWidth, height, 0, 0) +
         label + "\">\n";
}

std::string box_of(double x, double y, double w, double h) {
  return tag("<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"", x, y, std::max(0.0, w),
             h);
}

std::string label(double x, double y, const std::string& text, const char* anchor) {
  return tag("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"", x, y, 0, 0) + anchor + "\">" + text +
         "</text>\n";
}

std::string short_number(double value, const char* unit) {
  char text[48];
  std::snprintf(text, sizeof text, "%.3g %s", value, unit);
  return text;
}

std::string seconds_label(double seconds) {
  if (seconds >= 1) return short_number(seconds, "s");
  return seconds >= 1e-3 ? short_number(seconds * 1e3, "ms") : short_number(seconds * 1e6, "us");
}

const char* color_of(Work work) {
  switch (work) {
    case Work::kForward: return "var(--forward)";
    case Work::kBackwardWeight: return "var(--weight)";
    default: return "var(--backward)";
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
std::string time_axis(const Scale& scale, double y) {
  std::string svg;
  for (int i = 0; i <= 4; ++i) {
    const double at = scale.end * i / 4;
    svg += tag("<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"14\" y2=\"%.1f\"/>\n",
               scale.x(at), scale.x(at), y, 0);
    svg += label(scale.x(at), y + 14, seconds_label(at), i == 4 ? "end" : "middle");
  }
  return svg;
}

// Boxes of one rank. Narrow ones next to each other of one kind join, so that large schedules stay
// small pictures.
std::string row_boxes(const Step& step, std::size_t rank, double y, const Scale& scale) {
  const auto& spans = step.timing.spans[rank];
  const auto& actions = step.schedule.actions[rank];
  const double least = spans.size() > kMaxBoxes / 8 ? 0.8 : 0;
  std::string svg;
  for (std::size_t i = 0; i < spans.size();) {
    Span span = spans[i];
    std::size_t next = i + 1;
    while (next < spans.size() && scale.x(span.end) - scale.x(span.begin) < least)
      span.end = spans[next++].end;
    const double x = scale.x(span.begin), w = scale.x(span.end) - x;
    svg += box_of(x, y, w, 16) + " fill=\"" + color_of(actions[i].work) + "\"";
    if (w > 3) svg += " stroke=\"var(--panel)\" stroke-width=\"0.7\"";
    svg += "><title>" + describe(actions[i]) + ", " + seconds_label(span.end - span.begin) +
           "</title></rect>\n";
    i = next;
  }
  return svg;
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
  end += p.gradients + p.optimizer;
  const Scale scale{64, kWidth - 8, end};
  std::string svg = svg_open(height, "Timeline of a step");
  svg += time_axis(scale, height - 24);
  double y = 18;
  int last = -1;
  for (const int rank : rows) {
    const std::string gap = rank == last + 1 ? "" : "… ";
    svg += label(58, y + 12, gap + "rank " + std::to_string(rank), "end");
    svg += row_boxes(step, static_cast<std::size_t>(rank), y, scale);
    // After the last backward: gradients and shards, then the optimizer.
    double at = step.timing.spans[static_cast<std::size_t>(rank)].back().end;
    const double exchange = std::min(p.gradients + p.sharding, end - at);
    if (exchange > 0)
      svg += box_of(scale.x(at), y, scale.x(at + exchange) - scale.x(at), 16) +
             " fill=\"var(--exchange)\"><title>gradients and shards, " + seconds_label(exchange) +
             "</title></rect>\n";
    at += std::max(0.0, exchange);
    const double optimizer = std::min(p.optimizer, end - at);
    if (optimizer > 0)
      svg += box_of(scale.x(at), y, scale.x(at + optimizer) - scale.x(at), 16) +
             " fill=\"var(--optimizer)\"><title>optimizer, " + seconds_label(optimizer) +
             "</title></rect>\n";
    y += 20;
    last = rank;
  }
  return svg + "</svg>\n";
}

std::string memory_svg(const Step& step) {
  if (step.memory.empty()) return "";
  const std::vector<int> rows = shown(static_cast<int>(step.memory.size()));
  double most = 0;
  for (std::size_t r = 0; r < step.memory.size(); ++r)
    most = std::max({most, step.memory[r].total(), step.capacity[r]});
  const double height = 12 + 20 * static_cast<double>(rows.size()) + 26;
  const Scale scale{64, kWidth - 70, most};
  std::string svg = svg_open(height, "Memory by rank");
  double y = 6;
  for (const int rank : rows) {
    const Memory& m = step.memory[static_cast<std::size_t>(rank)];
    const std::pair<double, const char*> parts[] = {
        {m.weights, "weights"},     {m.gradients, "gradients"},
        {m.optimizer, "optimizer"}, {m.activations, "activations"},
        {m.transient, "transient"}, {m.fragmentation + m.context, "rest"}};
    svg += label(58, y + 12, "rank " + std::to_string(rank), "end");
    double at = 0;
    for (const auto& [bytes, name] : parts) {
      if (bytes <= 0) continue;
      svg += box_of(scale.x(at), y, scale.x(at + bytes) - scale.x(at), 16) + " fill=\"var(--m-" +
             name + ")\"><title>" + name + ", " + short_number(bytes / kGiB, "GiB") +
             "</title></rect>\n";
      at += bytes;
    }
    const double capacity = step.capacity[static_cast<std::size_t>(rank)];
    svg += tag("<line class=\"capacity\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n",
               scale.x(capacity), scale.x(capacity), y - 2, y + 18);
    svg += label(kWidth - 4, y + 12, short_number(at / kGiB, "GiB"), "end");
    y += 20;
  }
  svg += label(scale.x(step.capacity[0]), y + 12, "capacity", "end");
  return svg + "</svg>\n";
}

std::string sensitivity_svg(const std::vector<Change>& changes) {
  if (changes.empty()) return "";
  double most = 0.05;
  for (const Change& c : changes) most = std::max(most, std::fabs(c.throughput - 1));
  const double height = 10 + 20 * static_cast<double>(changes.size()), middle = 430, reach = 230;
  std::string svg = svg_open(height, "Sensitivity of the throughput");
  svg += tag("<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"0\" y2=\"%.1f\"/>\n", middle,
             middle, height, 0);
  double y = 6;
  for (const Change& c : changes) {
    const double by = c.throughput - 1, w = reach * std::fabs(by) / most;
    svg += label(170, y + 12, c.what, "end");
    svg += box_of(by < 0 ? middle - w : middle, y, w, 15) +
           (by < 0 ? " fill=\"var(--worse)\"/>\n" : " fill=\"var(--better)\"/>\n");
    char text[32];
    std::snprintf(text, sizeof text, "%+.1f %%", 100 * by);
    svg += label(by < 0 ? middle - w - 5 : middle + w + 5, y + 12, text, by < 0 ? "end" : "start");
    y += 20;
  }
  return svg + "</svg>\n";
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
  std::string svg = svg_open(230, "Throughput over the number of devices");
  svg += tag("<line class=\"ideal\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
             x(points.front()), y(1), x(points.back()), y(points.back().devices / devices));
  std::string path;
  for (const KneePoint& p : points) {
    const double at = y(p.samples_per_s / first);
    path += tag(path.empty() ? "M%.1f,%.1f" : "L%.1f,%.1f", x(p), at, 0, 0);
    svg +=
        tag("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"var(--forward)\"/>\n", x(p), at, 0, 0);
    svg += label(x(p), 214, std::to_string(p.devices), "middle");
    char text[48];
    std::snprintf(text, sizeof text, "%.3g/s, %.0f %%", p.samples_per_s, 100 * p.efficiency);
    svg += label(x(p), at + 18, text, &p == &points.front() ? "start" : "end");
  }
  svg += "<path d=\"" + path + "\" fill=\"none\" stroke=\"var(--forward)\" stroke-width=\"2\"/>\n";
  svg += label(kWidth - 6, 228, "devices", "end");
  return svg + "</svg>\n";
}

}  // namespace weft::plan

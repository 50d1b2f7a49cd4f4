// `weft top`: a live view of a run, from the files in its folder.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <iostream>
#include <limits>
#include <optional>
#include <thread>

#include "weft/base/text/numbers.h"
#include "weft/cli/commands.h"
#include "weft/cli/internal/run_name.h"
#include "weft/launch/live_page.h"
#include "weft/observe/report/metrics_file.h"
#include "weft/observe/report/run_list.h"

namespace weft::cli {
namespace {

using observe::MetricsPoint;
using observe::MetricsSeries;

constexpr std::int64_t kTail = 1 << 20;  // bytes read at the end of metrics.jsonl each time
constexpr std::size_t kWindow = 50;      // times are medians over this many records
constexpr std::array kParts = {"data", "forward", "backward", "communication", "optimizer"};

volatile std::sig_atomic_t interrupted = 0;

// The last points of a series; empty if the series does not exist.
std::vector<MetricsPoint> tail_of(const MetricsSeries& series, const std::string& name,
                                  std::size_t count) {
  const auto found = series.find(name);
  if (found == series.end()) return {};
  const auto& points = found->second;
  return {points.end() - static_cast<std::ptrdiff_t>(std::min(count, points.size())), points.end()};
}

double median_of(const MetricsSeries& series, const std::string& name) {
  const auto points = tail_of(series, name, kWindow);
  return points.empty() ? 0 : observe::median(points);
}

// A line chart such as "▇▆▄▃▂▁", at most `columns` wide. NaN is a gap.
std::string curve_of(const std::vector<MetricsPoint>& points, std::size_t columns) {
  constexpr std::array<const char*, 8> kBlocks{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const MetricsPoint& point : points) {
    if (std::isnan(point.value)) continue;
    low = std::min(low, point.value);
    high = std::max(high, point.value);
  }
  if (low > high) return "";
  const std::size_t parts = std::min(columns, points.size());
  std::string curve;
  for (std::size_t part = 0; part < parts; ++part) {
    const double value = points[part * points.size() / parts].value;
    if (std::isnan(value)) {
      curve += " ";
    } else {
      const double height = high > low ? (value - low) / (high - low) : 0;
      curve += kBlocks[static_cast<std::size_t>(height * 7.999)];
    }
  }
  return curve;
}

std::string parts_of_step(const MetricsSeries& series) {
  double sum = 0;
  for (const char* part : kParts) sum += median_of(series, std::string(part) + "_ms");
  if (sum <= 0) return "";
  std::string text = formatted("%.4g ms:", sum);
  for (const char* part : kParts) {
    const double ms = median_of(series, std::string(part) + "_ms");
    text += " " + std::string(part) + formatted(" %.0f %%", 100 * ms / sum);
  }
  return text;
}

// Megabytes that a rank moves per step, averaged over the ranks.
std::string traffic_of_step(const MetricsSeries& series) {
  const auto sent = tail_of(series, "sent_mb", 1), shared = tail_of(series, "shared_mb", 1);
  if (sent.empty() || shared.empty()) return "";
  return formatted("%.4g MB sent, ", sent[0].value) +
         formatted("%.4g MB in shared memory, a rank in a step", shared[0].value);
}

std::string view(const observe::RunInfo& run, const MetricsSeries& series) {
  std::string text = run.name + (run.running ? ", running" : ", ended") + "\n";
  const auto line = [&](const char* name, const std::string& value) {
    if (!value.empty())
      text +=
          std::string(name) + std::string(14 - std::string_view(name).size(), ' ') + value + "\n";
  };
  line("step", run.step ? std::to_string(*run.step) + " (epoch " + std::to_string(*run.epoch) + ")"
                        : "none yet");
  const auto loss = tail_of(series, "loss", 600);
  if (run.loss) line("loss", shortened(*run.loss) + "  " + curve_of(loss, 50));
  // The last evaluation may be far from the end of metrics.jsonl.
  if (run.accuracy) line("accuracy", shortened(*run.accuracy));
  if (const auto norm = tail_of(series, "grad_norm", 1); !norm.empty())
    line("grad_norm", shortened(norm[0].value));
  for (const auto& [name, value] : run.own) {
    if (name == "perplexity") line("perplexity", shortened(value));
  }
  if (run.test_loss) line("test_loss", shortened(*run.test_loss));
  if (const double speed = median_of(series, "samples_per_s"); speed > 0)
    line("samples/s", formatted("%.0f", speed));
  if (const double mfu = median_of(series, "mfu"); mfu > 0)
    line("MFU", formatted("%.1f %%", 100 * mfu));
  line("step time", parts_of_step(series));
  line("traffic", traffic_of_step(series));
  if (const auto memory = tail_of(series, "memory_gb", 1); !memory.empty())
    line("memory", formatted("%.2f GB (rank 0)", memory[0].value));
  const auto slowest = tail_of(series, "slowest_rank", 1),
             ratio = tail_of(series, "slowest_over_median", 1);
  if (!slowest.empty() && !ratio.empty()) {
    line("slowest rank",
         formatted("%.0f", slowest[0].value) +
             formatted(", %.2f times the median rank's time to compute", ratio[0].value));
  }
  const auto awaited = tail_of(series, "awaited_rank", 1),
             share = tail_of(series, "awaited_share", 1);
  if (!awaited.empty() && !share.empty()) {
    line("awaited rank",
         formatted("%.0f", awaited[0].value) +
             formatted(", the others wait for it %.0f %% of a step", 100 * share[0].value));
  }
  line("checkpoint", run.checkpoint ? "step " + std::to_string(*run.checkpoint) : "none yet");
  return text;
}

}  // namespace

int top(const TopCommand& command) {
  const std::string folder = run_folder_of(command.run);
  const bool live = !command.once && ::isatty(STDOUT_FILENO) == 1;
  std::optional<launch::LivePage> page;
  if (!command.http.empty()) {
    page.emplace(command.http);
    page->use_here();
    launch::show_run(folder);
  }
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = 1; };
  if (live || page) ::sigaction(SIGINT, &action, nullptr);
  for (int lines = 0;;) {
    const observe::RunInfo run = observe::read_run(folder);
    const std::string text = view(run, observe::read_metrics(folder + "/metrics.jsonl", kTail));
    if (lines > 0 && live) std::cout << "\x1b[" << lines << "A\x1b[J";  // erase the previous view
    if (lines == 0 || live) std::cout << text << std::flush;
    lines = static_cast<int>(std::count(text.begin(), text.end(), '\n'));
    if (interrupted != 0 || (!page && (!live || !run.running))) return 0;
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

}  // namespace weft::cli

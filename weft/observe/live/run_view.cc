#include "weft/observe/live/run_view.h"

#include <filesystem>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/observe/report/report.h"

namespace weft::observe {
namespace {

constexpr std::chrono::seconds kFresh{1};
constexpr std::size_t kMaxRankBytes = std::size_t{16} << 20;

}  // namespace

void RunView::follow(const std::string& run_folder) {
  const std::lock_guard lock(mutex_);
  folder_ = run_folder;
  follower_ = std::make_unique<MetricsFollower>(run_folder + "/metrics.jsonl");
  read_.reset();
  json_.reset();
}

std::optional<std::string> RunView::json() {
  const std::lock_guard lock(mutex_);
  refresh();
  return json_;
}

std::string RunView::metrics() {
  const std::lock_guard lock(mutex_);
  refresh();
  return metrics_;
}

void RunView::refresh() {
  if (read_ && now_() - *read_ < kFresh) return;
  read_ = now_();
  if (!follower_ || !std::filesystem::exists(folder_ + "/config.toml")) {
    json_.reset();
    metrics_ = prometheus_text_without_run();
    return;
  }
  const MetricsSeries& series = follower_->update();
  const std::string ranks = folder_ + "/ranks.json";
  json_ = live_json(folder_, series);
  metrics_ = prometheus_text(read_run(folder_, series), series,
                             std::filesystem::exists(ranks) ? read_file(ranks, kMaxRankBytes) : "");
}

}  // namespace weft::observe

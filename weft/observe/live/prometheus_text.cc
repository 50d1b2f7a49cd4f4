// Writes a run's metrics in Prometheus's conventions: prefix, base units, _total for counters.
#include <prometheus/text_serializer.h>

#include <nlohmann/json.hpp>

#include "weft/observe/live/run_view.h"
#include "weft/observe/run/metric_names.h"

namespace weft::observe {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

// A value of metrics.jsonl and its name in Prometheus.
struct Exported {
  const char* name;
  const char* exported;
  const char* help;
  double scale = 1;
};

constexpr Exported kGauges[] = {
    {"loss", "weft_train_loss", "Training loss of the last step."},
    {"test_loss", "weft_test_loss", "Loss of the last evaluation."},
    {"accuracy", "weft_test_accuracy_ratio", "Accuracy of the last evaluation, from 0 to 1."},
    {"lr", "weft_train_learning_rate", "Learning rate of the last step."},
    {"samples_per_s", "weft_train_samples_per_second", "Samples per second, over all ranks."},
    {"grad_norm", "weft_train_gradient_norm", "Gradient norm before clipping."},
    {"noise_scale", "weft_train_gradient_noise_scale_samples", "Gradient noise scale, in samples."},
    {"mfu", "weft_train_mfu_ratio", "Model FLOPs utilization, from 0 to 1."},
    {"slowest_rank", "weft_train_slowest_rank", "Rank with the longest time to compute."},
    {"awaited_rank", "weft_train_awaited_rank", "Rank that the others wait for most."},
    {"sent_mb", "weft_communication_step_sent_bytes",
     "Payload of messages that a rank sends in a step, mean over the ranks.", 1e6},
    {"shared_mb", "weft_communication_step_shared_bytes",
     "Memory of other ranks that collectives of a rank read or write in a step, mean over the "
     "ranks.",
     1e6},
};

constexpr Exported kPhases[] = {{"data_ms", "data", ""},
                                {"forward_ms", "forward", ""},
                                {"backward_ms", "backward", ""},
                                {"communication_ms", "communication", ""},
                                {"optimizer_ms", "optimizer", ""}};

class Families {
 public:
  void begin(const char* name, const char* help, MetricType type) {
    all_.push_back({name, help, type, {}});
  }
  void add(double value, Labels labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.counter.value = metric.gauge.value = value;
    all_.back().metric.push_back(std::move(metric));
  }
  void gauge(const char* name, const char* help, double value, Labels labels = {}) {
    begin(name, help, MetricType::Gauge);
    add(value, std::move(labels));
  }
  std::string text() const { return prometheus::TextSerializer().Serialize(all_); }

 private:
  std::vector<MetricFamily> all_;
};

std::optional<double> last_of(const MetricsSeries& series, const std::string& name) {
  const auto found = series.find(name);
  if (found == series.end() || found->second.empty()) return std::nullopt;
  return found->second.back().value;
}

void add_ranks(Families& families, const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("ranks") || !json["ranks"].is_array()) return;
  const auto& ranks = json["ranks"];
  const auto each = [&](const char* name, double scale, Labels more) {
    for (const auto& rank : ranks) {
      if (!rank.is_object() || !rank.contains(name) || !rank[name].is_number()) continue;
      Labels labels{{"rank", std::to_string(rank.value("rank", -1))}};
      labels.insert(labels.end(), more.begin(), more.end());
      families.add(rank[name].get<double>() * scale, std::move(labels));
    }
  };
  families.begin("weft_rank_memory_bytes", "Memory that the rank's process holds.",
                 MetricType::Gauge);
  each("memory_bytes", 1, {});
  families.begin("weft_rank_compute_seconds",
                 "Time of forward and backward of a step, mean over the last steps.",
                 MetricType::Gauge);
  each("compute_ms", 1e-3, {});
  families.begin("weft_rank_waited_seconds",
                 "Time of a step that the rank waits for others, mean over the last steps.",
                 MetricType::Gauge);
  each("waited_ms", 1e-3, {});
  families.begin("weft_rank_awaited_ratio",
                 "Share of a step, from 0 to 1, that the other ranks wait for this rank.",
                 MetricType::Gauge);
  each("awaited_share", 1, {});
  families.begin("weft_communication_bytes_total",
                 "Bytes that the rank has moved: payload of messages to other ranks, and memory of "
                 "other ranks that collectives have read or written in place.",
                 MetricType::Counter);
  each("sent_bytes", 1, {{"path", "messages"}});
  each("shared_bytes", 1, {{"path", "shared_memory"}});
}

}  // namespace

std::string prometheus_text(const RunInfo& run, const MetricsSeries& series,
                            const std::string& ranks_json) {
  Families families;
  families.gauge("weft_run_info", "The run that these metrics are of.", 1, {{"run", run.name}});
  families.gauge("weft_run_running", "1 while a process trains the run, else 0.",
                 run.running ? 1 : 0);
  families.gauge("weft_run_updated_timestamp_seconds", "Time of the last record of the run.",
                 static_cast<double>(std::chrono::system_clock::to_time_t(run.changed)));
  // Gauges: both go back if the run resumes from a checkpoint.
  families.gauge("weft_train_step", "Last step that the run has trained.",
                 static_cast<double>(run.step.value_or(0)));
  families.gauge("weft_train_completed_epochs", "Epochs that the run has completed.",
                 static_cast<double>(run.epoch.value_or(0)));
  if (run.checkpoint)
    families.gauge("weft_checkpoint_step", "Step of the newest checkpoint.",
                   static_cast<double>(*run.checkpoint));
  for (const Exported& one : kGauges) {
    if (const auto value = last_of(series, one.name))
      families.gauge(one.exported, one.help, *value * one.scale);
  }
  families.begin("weft_own_metric",
                 "Last value of a metric of the task, or of a value that the program logs.",
                 MetricType::Gauge);
  for (const auto& [name, points] : series) {
    if (is_of_weft(name) || name == "accuracy" || points.empty()) continue;
    families.add(points.back().value, {{"name", name}});
  }
  families.begin("weft_train_phase_seconds", "Time of a part of the last step, on rank 0.",
                 MetricType::Gauge);
  for (const Exported& one : kPhases) {
    if (const auto value = last_of(series, one.name))
      families.add(*value * 1e-3, {{"phase", one.exported}});
  }
  add_ranks(families, ranks_json);
  return families.text();
}

std::string prometheus_text_without_run() {
  Families families;
  families.gauge("weft_run_running", "1 while a process trains the run, else 0.", 0);
  return families.text();
}

}  // namespace weft::observe

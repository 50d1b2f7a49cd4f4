#include "weft/observe/run/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "weft/base/error.h"
#include "weft/base/log.h"

namespace weft::observe {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 30;

// Keeps the lines of steps before `first`. Drops a last line without a newline: the run was killed
// while it wrote that line.
void drop_from(const std::string& path, std::int64_t first) {
  if (!std::filesystem::exists(path)) return;
  const std::string all = read_file(path, kMaxBytes);
  std::string kept;
  for (std::size_t at = 0, end = 0; (end = all.find('\n', at)) != std::string::npos; at = end + 1) {
    long long step = 0;
    if (std::sscanf(all.c_str() + at, "{\"step\":%lld,", &step) == 1 && step < first)
      kept.append(all, at, end + 1 - at);
  }
  if (kept.size() == all.size()) return;
  // As a rule the end is dropped, which needs no space on the disk.
  if (!all.starts_with(kept)) return write_file_atomic(path, kept);
  if (::truncate(path.c_str(), static_cast<off_t>(kept.size())) != 0)
    fail_io("cannot truncate", path);
}

UniqueFd open_metrics(const std::string& path, std::int64_t first) {
  drop_from(path, first);
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file) fail_io("cannot open", path);
  return file;
}

}  // namespace

std::string metrics_line(std::int64_t step, std::int64_t epoch, const Values& values) {
  std::string line = "{\"step\":" + std::to_string(step) + ",\"epoch\":" + std::to_string(epoch);
  for (const auto& [name, value] : values)
    line += "," + json_quote(name) + ":" + json_number(value);
  return line + "}\n";
}

std::string ranks_json(std::int64_t step, std::span<const RankState> ranks) {
  std::string text = "{\"step\":" + std::to_string(step) + ",\"ranks\":[";
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankState& state = ranks[rank];
    text += std::string(rank == 0 ? "" : ",") + "{\"rank\":" + std::to_string(rank) +
            ",\"compute_ms\":" + json_number(state.compute_ms) +
            ",\"memory_bytes\":" + json_number(state.memory_bytes) +
            ",\"sent_bytes\":" + json_number(state.sent_bytes) +
            ",\"shared_bytes\":" + json_number(state.shared_bytes) +
            ",\"waited_ms\":" + json_number(state.waited_ms) +
            ",\"awaited_share\":" + json_number(state.awaited_share) + "}";
  }
  return text + "]}\n";
}

Metrics::Metrics(const std::string& folder, std::int64_t first)
    : file_(open_metrics(folder + "/metrics.jsonl", first), folder + "/metrics.jsonl"),
      events_(folder, first) {}

void Metrics::add(const std::string& group, std::int64_t step, std::int64_t epoch,
                  const Values& values) {
  file_.append(metrics_line(step, epoch, values));
  Values tagged;
  tagged.reserve(values.size());
  for (const auto& [name, value] : values) tagged.emplace_back(group + "/" + name, value);
  events_.add(step, tagged);
}

void Metrics::write_ranks(std::int64_t step, std::span<const RankState> ranks) const {
  const std::string path = parent_of(file_.path()) + "/ranks.json", aside = path + ".new";
  {
    const UniqueFd file(::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!file) return;
    try {
      write_all(file.get(), ranks_json(step, ranks), aside);
    } catch (const Error&) {
      return;
    }
  }
  static_cast<void>(std::rename(aside.c_str(), path.c_str()));
}

}  // namespace weft::observe

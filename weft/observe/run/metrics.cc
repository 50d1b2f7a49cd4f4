#include "weft/observe/run/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>
#include <string_view>

#include "weft/base/error.h"
#include "weft/base/json/json_writer.h"

namespace weft::observe {
namespace {

constexpr std::string_view kBegin = "{\"step\":";
constexpr std::size_t kBlock = 64 << 10;
constexpr std::size_t kMaxLine = 1 << 20;

// The step of a record; nullopt if the line is none.
std::optional<std::int64_t> step_of(std::string_view line) {
  if (!line.starts_with(kBegin)) return std::nullopt;
  line.remove_prefix(kBegin.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), step);
  const bool is_record = error == std::errc() && end != line.data() + line.size() && *end == ',';
  return is_record ? std::optional(step) : std::nullopt;
}

// The file's length up to the last record of a step before `first`. Reads from the end of the file:
// a run of days has many records, and a lost rank drops only the last ones.
off_t length_before(int file, std::int64_t first, const std::string& path) {
  off_t begin = ::lseek(file, 0, SEEK_END);
  std::string text;  // the file from `begin` on, without the records that were looked at
  for (;;) {
    for (auto end = text.rfind('\n'); end != std::string::npos; end = text.rfind('\n')) {
      const auto before = end == 0 ? std::string::npos : text.rfind('\n', end - 1);
      if (before == std::string::npos && begin > 0) break;
      const std::size_t start = before == std::string::npos ? 0 : before + 1;
      const auto step = step_of(std::string_view(text).substr(start, end - start));
      if (step && *step < first) return begin + static_cast<off_t>(end) + 1;
      text.resize(start);
    }
    if (begin == 0) return 0;
    if (text.size() > kMaxLine) text.clear();  // no record
    const auto size = std::min<off_t>(begin, kBlock);
    std::string block(static_cast<std::size_t>(size), '\0');
    if (::pread(file, block.data(), block.size(), begin - size) != size)
      fail_io("cannot read", path);
    begin -= size;
    text.insert(0, block);
  }
}

// Drops records from the step `first` on, and a last one without a newline: the run was killed
// while it wrote that one. The end is cut off, which needs no space on the disk.
UniqueFd open_metrics(const std::string& path, std::int64_t first) {
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file) fail_io("cannot open", path);
  const off_t length = length_before(file.get(), first, path);
  if (length < ::lseek(file.get(), 0, SEEK_END) && ::ftruncate(file.get(), length) != 0)
    fail_io("cannot truncate", path);
  return file;
}

}  // namespace

std::string metrics_line(std::int64_t step, std::int64_t epoch, const Values& values) {
  std::string line;
  JsonWriter json(line);
  json.begin_object().field("step", step).field("epoch", epoch);
  for (const auto& [name, value] : values) json.field(name, value);
  json.end_object();
  return line + "\n";
}

std::string ranks_json(std::int64_t step, std::span<const RankState> ranks) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().field("step", step).key("ranks").begin_array();
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankState& state = ranks[rank];
    json.begin_object().field("rank", rank).field("compute_ms", state.compute_ms);
    json.field("memory_bytes", state.memory_bytes).field("sent_bytes", state.sent_bytes);
    json.field("shared_bytes", state.shared_bytes).field("waited_ms", state.waited_ms);
    json.field("awaited_share", state.awaited_share).end_object();
  }
  json.end_array().end_object();
  return text + "\n";
}

Metrics::Metrics(const std::string& folder, std::int64_t first, std::int64_t known)
    : known_(known),
      file_(open_metrics(folder + "/metrics.jsonl", std::max(first, known + 1)),
            folder + "/metrics.jsonl"),
      events_(folder, std::max(first, known + 1)) {}

void Metrics::add(const std::string& group, std::int64_t step, std::int64_t epoch,
                  const Values& values) {
  if (step <= known_) return;
  file_.append(metrics_line(step, epoch, values));
  if (values.empty()) return;
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
    } catch (const Error&) {  // a full disk: the old file stays
      return;
    }
  }
  static_cast<void>(std::rename(aside.c_str(), path.c_str()));
}

}  // namespace weft::observe

#include "weft/observe/metrics.h"

#include <fcntl.h>

#include "weft/base/log.h"

namespace weft::observe {

std::string metrics_line(std::int64_t step, std::int64_t epoch, const Values& values) {
  std::string line = "{\"step\":" + std::to_string(step) + ",\"epoch\":" + std::to_string(epoch);
  for (const auto& [name, value] : values) line += "," + json_quote(name) + ":" + json_number(value);
  return line + "}\n";
}

Metrics::Metrics(const std::string& folder)
    : path_(folder + "/metrics.jsonl"),
      file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)),
      events_((file_ ? void(0) : fail_io("cannot open", path_), folder)) {}

void Metrics::add(const std::string& group, std::int64_t step, std::int64_t epoch, const Values& values) {
  write_all(file_.get(), metrics_line(step, epoch, values), path_);
  Values tagged;
  tagged.reserve(values.size());
  for (const auto& [name, value] : values) tagged.emplace_back(group + "/" + name, value);
  events_.add(step, tagged);
}

}  // namespace weft::observe

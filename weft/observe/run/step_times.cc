#include "weft/observe/run/step_times.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "weft/base/json/json_writer.h"
#include "weft/base/text/variables.h"

namespace weft::observe {
std::string to_line(const StepTime& time) {
  std::string line;
  JsonWriter json(line);
  json.begin_object().field("ns", time.ns).field("pid", time.pid).field("rank", time.rank);
  json.field("ranks", time.ranks).field("group", time.group).field("step", time.step);
  json.field("epoch", time.epoch).field("position", time.position);
  if (time.ready) json.field("ready", true);
  json.end_object();
  return line + "\n";
}

std::optional<StepTime> step_time_of(const std::string& line) {
  StepTime time;
  int end = 0;
  std::sscanf(line.c_str(),
              "{\"ns\":%" SCNd64 ",\"pid\":%d,\"rank\":%d,\"ranks\":%d,\"group\":%" SCNd64
              ",\"step\":%" SCNd64 ",\"epoch\":%" SCNd64 ",\"position\":%" SCNd64 "%n",
              &time.ns, &time.pid, &time.rank, &time.ranks, &time.group, &time.step, &time.epoch,
              &time.position, &end);
  if (end == 0) return std::nullopt;
  const std::string rest = line.substr(static_cast<std::size_t>(end));
  time.ready = rest == ",\"ready\":true}";
  return time.ready || rest == "}" ? std::optional(time) : std::nullopt;
}

StepTimes::StepTimes() : path_(variable("WEFT_STEP_TIMES")) {
  if (path_.empty()) return;
  file_ = UniqueFd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file_) fail_io("WEFT_STEP_TIMES: cannot open", path_);
}

void StepTimes::add(StepTime time) {
  if (!file_) return;
  time.ns = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  time.pid = ::getpid();
  time.rank = std::atoi(variable("RANK").c_str());
  write_all(file_.get(), to_line(time), path_);
}

std::vector<StepTime> StepTimesReader::read() {
  std::vector<StepTime> times;
  if (!file_) file_ = UniqueFd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file_) return times;
  char bytes[65536];
  for (ssize_t got; (got = ::read(file_.get(), bytes, sizeof bytes)) > 0;)
    rest_.append(bytes, static_cast<std::size_t>(got));
  std::size_t at = 0;
  for (std::size_t end; (end = rest_.find('\n', at)) != std::string::npos; at = end + 1) {
    if (auto time = step_time_of(rest_.substr(at, end - at))) times.push_back(*time);
  }
  rest_.erase(0, at);
  return times;
}

}  // namespace weft::observe

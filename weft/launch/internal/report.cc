#include "weft/launch/internal/report.h"

#include <signal.h>

#include <fstream>

#include "weft/base/error.h"

namespace weft::launch::internal {
namespace {

// What a number alone does not tell.
std::string hint(const ExitStatus& status, bool out_of_memory) {
  if (!status.signaled) {
    for (const Errc code : {Errc::kTimeout, Errc::kPeerLost, Errc::kAborted, Errc::kUnavailable, Errc::kCorrupt, Errc::kInternal}) {
      if (status.value == exit_code(code)) return std::string(" (weft: ") + to_string(code) + ")";
    }
    return "";
  }
  switch (status.value) {
    case SIGKILL:
      return out_of_memory ? ": the kernel killed it for lack of memory; use a smaller batch, fewer ranks or a higher memory limit"
                           : ": killed from outside; may be out of memory (see dmesg)";
    case SIGBUS: return ": a mapped file or shared memory could not be filled; is /dev/shm or the disk full?";
    case SIGSEGV: return ": invalid memory access";
    case SIGABRT: return ": aborted; an exception that nobody caught, or a failed assertion";
    case SIGILL: return ": illegal instruction; built for another processor?";
    default: return "";
  }
}

std::string name(const Failure& failure, int local) { return "rank " + std::to_string(failure.first_rank + local); }

}  // namespace

std::string failure_report(const Failure& failure) {
  const auto culprit = first_failure(failure.situation);
  if (!culprit) return "";
  std::string text;
  for (int local = 0; local < static_cast<int>(failure.situation.ranks.size()); ++local) {
    const auto& end = failure.situation.ranks[static_cast<std::size_t>(local)];
    if (local == *culprit || !end || end->status.ok()) continue;
    text += "weft: " + name(failure, local) + (is_consequence(*end, failure.situation) ? " ended in consequence: " : " failed later: ") +
            end->status.describe() + hint(end->status, false) + "\n";
  }
  const auto& end = *failure.situation.ranks[static_cast<std::size_t>(*culprit)];
  if (!failure.last_lines.empty()) {
    text += "weft: last lines of " + name(failure, *culprit) + " on stderr:\n";
    for (const auto& line : failure.last_lines) text += "    " + line + "\n";
  }
  const bool stopped = failure.stop_signal != 0 && is_consequence(end, failure.situation);
  text += "weft: " + (stopped ? "stopped by " + signal_name(failure.stop_signal) + "; " + name(failure, *culprit) + " ended first: "
                              : name(failure, *culprit) + " failed first: ");
  text += end.status.describe() + (stopped ? "" : hint(end.status, failure.out_of_memory));
  if (!failure.cause.empty()) text += ": " + failure.cause;
  if (!failure.log.empty()) text += " (log: " + failure.log + ")";
  return text + "\n";
}

long out_of_memory_kills() {
  std::string group, word;
  std::ifstream own("/proc/self/cgroup");
  for (std::string line; std::getline(own, line);) {
    if (line.rfind("0::", 0) == 0) group = line.substr(3);
  }
  for (const auto& path : {"/sys/fs/cgroup" + group + "/memory.events", std::string("/proc/vmstat")}) {
    std::ifstream counters(path);
    long value = 0;
    while (counters >> word >> value) {
      if (word == "oom_kill") return value;
    }
  }
  return 0;
}

}  // namespace weft::launch::internal

#include "weft/launch/internal/report.h"

#include <signal.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <utility>

#include "weft/base/error.h"

namespace weft::launch::internal {
namespace {

// Explanation of a signal number.
std::string hint(const ExitStatus& status, bool out_of_memory) {
  if (!status.signaled) {
    for (const Errc code : {Errc::kTimeout, Errc::kPeerLost, Errc::kAborted, Errc::kUnavailable,
                            Errc::kCorrupt, Errc::kInternal}) {
      if (status.value == exit_code(code)) return std::string(" (weft: ") + to_string(code) + ")";
    }
    return "";
  }
  switch (status.value) {
    case SIGKILL:
      return out_of_memory
                 ? ": the kernel killed it because memory ran out; use a smaller batch, fewer "
                   "ranks or a higher memory limit"
                 : ": killed by another process or the kernel; check for out of memory (dmesg)";
    case SIGBUS:
      return ": a mapped file or shared memory could not be filled; check whether /dev/shm or the "
             "disk is full";
    case SIGSEGV: return ": invalid memory access";
    case SIGABRT: return ": aborted; an uncaught exception or a failed assertion";
    case SIGILL:
      return ": illegal instruction; check that the program was built for this processor";
    default: return "";
  }
}

// "rank 4", "ranks 4 and 5", "ranks 4, 5 and 6", "ranks 4 to 19".
std::string name(const Failure& failure, const std::vector<int>& locals) {
  const auto number = [&](int local) {
    return std::to_string(failure.situation.first_rank + local);
  };
  if (locals.size() == 1) return "rank " + number(locals[0]);
  if (locals.size() > 3 && locals.back() - locals.front() + 1 == static_cast<int>(locals.size())) {
    return "ranks " + number(locals.front()) + " to " + number(locals.back());
  }
  std::string text = "ranks " + number(locals[0]);
  for (std::size_t i = 1; i < locals.size(); ++i)
    text += (i + 1 == locals.size() ? " and " : ", ") + number(locals[i]);
  return text;
}

// The end of a rank, if it failed; null otherwise.
const RankEnd* failed_end(const Failure& failure, int local) {
  const auto& end = failure.situation.ranks[static_cast<std::size_t>(local)];
  return end && !end->status.ok() ? &*end : nullptr;
}

std::string cause_of(const Failure& failure, int local) {
  const RankEnd* const end = failed_end(failure, local);
  return end != nullptr && end->cause ? end->cause->message : "";
}

// The end of a rank and its cause, without its own number, so that the same error has the same text
// on all ranks.
std::string likeness(const Failure& failure, int local) {
  std::string cause = cause_of(failure, local);
  const std::string own = "rank " + std::to_string(failure.situation.first_rank + local);
  for (auto at = cause.find(own); at != std::string::npos; at = cause.find(own, at + 1)) {
    const auto end = at + own.size();
    if (end < cause.size() && std::isdigit(static_cast<unsigned char>(cause[end])) != 0) continue;
    cause.replace(at, own.size(), "rank");
  }
  return failed_end(failure, local)->status.describe() + "\n" + cause;
}

// True if both ranks failed with the same error.
bool are_alike(const Failure& failure, int one, int other) {
  const std::string cause = cause_of(failure, one);
  if (cause.empty()) return false;
  const bool is_same = cause == cause_of(failure, other) &&
                       failed_end(failure, one)->status == failed_end(failure, other)->status;
  return is_same || likeness(failure, one) == likeness(failure, other);
}

std::string with_cause(const std::string& cause) { return cause.empty() ? "" : ": " + cause; }

// True if the error is in what the rank was given: a flag, a recipe, a file. It is the whole story
// then.
bool is_of_input(const RankEnd& end) {
  return end.cause && end.cause->code &&
         (*end.cause->code == Errc::kInvalidArgument || *end.cause->code == Errc::kBadConfig ||
          *end.cause->code == Errc::kCorrupt);
}

// Other failed ranks, grouped by equal ends.
std::string others(const Failure& failure, const std::vector<int>& told, bool with_consequences) {
  std::map<std::pair<bool, std::string>, std::vector<int>> groups;
  for (int local = 0; local < static_cast<int>(failure.situation.ranks.size()); ++local) {
    const RankEnd* const end = failed_end(failure, local);
    const bool here =
        local >= failure.first_here && local - failure.first_here < failure.count_here;
    if (end == nullptr || !here || std::find(told.begin(), told.end(), local) != told.end())
      continue;
    if (is_consequence(*end) && !with_consequences) continue;
    groups[{is_consequence(*end), likeness(failure, local)}].push_back(local);
  }
  std::string text;
  for (const auto& [how, locals] : groups) {
    const ExitStatus& status = failed_end(failure, locals[0])->status;
    const bool is_ours =
        how.first && failure.situation.kill_sent && status.signaled && status.value == SIGKILL;
    text += "weft: " + name(failure, locals) +
            (how.first ? " ended as a consequence: " : " failed later: ") + status.describe() +
            (is_ours ? ": killed by weft" : hint(status, false)) +
            with_cause(cause_of(failure, locals[0])) + "\n";
  }
  return text;
}

std::string last_lines_of(const Failure& failure, int culprit) {
  if (failure.last_lines.empty()) return "";
  std::string text = "weft: last lines of " + name(failure, {culprit}) + " on stderr:\n";
  for (const auto& line : failure.last_lines) text += "    " + line + "\n";
  return text;
}

// The last line if a rank was killed because it hung.
std::string about_the_hung(const Failure& failure) {
  return "weft: " + failure.situation.hang->why + ": the job was ended (--on-hang end)";
}

// The last line if a rank that did not fail is at fault.
std::string about_the_awaited(const Failure& failure, const Blame& blamed) {
  const auto how = [&]() -> std::string {
    switch (blamed.how) {
      case Blame::How::kStopped: return " was stopped by a signal, such as SIGSTOP";
      case Blame::How::kLeft: return " ended early, with exit code 0";
      default: return " did not answer";
    }
  }();
  return "weft: " + name(failure, {blamed.rank}) + how + "; " + name(failure, {blamed.waiting}) +
         " waited for it" + with_cause(cause_of(failure, blamed.waiting));
}

// The last line if the rank at fault failed by itself, as the ranks in `alike` did.
std::string about_the_failed(const Failure& failure, int culprit, const std::vector<int>& alike) {
  const RankEnd& end = *failed_end(failure, culprit);
  const bool stopped = (failure.stop_signal != 0 || !failure.asked.empty()) && is_consequence(end);
  const std::string by = failure.asked.empty() ? signal_name(failure.stop_signal) : failure.asked;
  std::string text =
      "weft: " +
      (stopped ? "stopped by " + by + "; " + name(failure, {culprit}) + " ended first: "
               : name(failure, alike) + (alike.size() > 1 ? " failed: " : " failed first: "));
  text += end.status.describe() + (stopped ? "" : hint(end.status, failure.out_of_memory));
  return text + with_cause(cause_of(failure, culprit));
}

}  // namespace

std::string failure_report(const Failure& failure) {
  const auto blamed = blame(failure.situation);
  if (!blamed) return "";
  const bool failed = blamed->how == Blame::How::kFailed, hung = blamed->how == Blame::How::kHung;
  std::vector<int> alike;
  if (hung) alike.push_back(blamed->rank);
  for (int local = 0; failed && local < static_cast<int>(failure.situation.ranks.size()); ++local) {
    if (local == blamed->rank || are_alike(failure, local, blamed->rank)) alike.push_back(local);
  }
  const std::string last = failed ? about_the_failed(failure, blamed->rank, alike)
                           : hung ? about_the_hung(failure)
                                  : about_the_awaited(failure, *blamed);
  const std::string log = failure.log.empty() ? "" : " (log: " + failure.log + ")";
  const bool of_input = failed && is_of_input(*failed_end(failure, blamed->rank));
  return others(failure, alike, !of_input) + last_lines_of(failure, blamed->rank) + last + log +
         "\n";
}

std::string description_of(const RankEnd& end, bool out_of_memory) {
  return end.status.describe() + hint(end.status, out_of_memory) +
         with_cause(end.cause ? end.cause->message : "");
}

long out_of_memory_kills() {
  std::string group, word;
  std::ifstream own("/proc/self/cgroup");
  for (std::string line; std::getline(own, line);) {
    if (line.rfind("0::", 0) == 0) group = line.substr(3);
  }
  for (const auto& path :
       {"/sys/fs/cgroup" + group + "/memory.events", std::string("/proc/vmstat")}) {
    std::ifstream counters(path);
    long value = 0;
    while (counters >> word >> value) {
      if (word == "oom_kill") return value;
    }
  }
  return 0;
}

}  // namespace weft::launch::internal

#include "weft/base/fault/failpoint.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <optional>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/text/numbers.h"
#include "weft/base/text/variables.h"
#include "weft/base/text/words.h"

namespace weft {
namespace {

// Places that action=break can break.
constexpr const char* kBreakable[] = {"copy.middle", "recovery.restored"};
constexpr const char* kPoints[] = {
    "step.begin", "forward.begin", "update.begin", "update.middle", "copy.middle",
    // The start of the job.
    "meet.begin", "meet.made",
    // A recovery, in this order.
    "recovery.begin", "recovery.left", "regroup.begin", "regroup.arrived", "regroup.decided",
    "regroup.connected", "regroup.ready", "recovery.regrouped", "state.begin", "state.listed",
    "subgroup.begin", "subgroup.made", "state.loaded", "recovery.restored",
    // A rank that leaves the job.
    "leave.begin", "leave.told"};

using Action = Failpoint::Action;
constexpr std::pair<const char*, Action> kActions[] = {
    {"kill", Action::kKill}, {"stop", Action::kStop},   {"exit", Action::kExit},
    {"spin", Action::kSpin}, {"sleep", Action::kSleep}, {"break", Action::kBreak}};

std::atomic<std::int64_t> step_now{0};

[[noreturn]] void reject(const std::string& part, const std::string& why) {
  throw Error(Errc::kBadConfig, "WEFT_FAIL: \"" + part + "\": " + why);
}

std::int64_t read_number(const std::string& part, const std::string& digits) {
  const auto value = parse_count<std::int64_t>(digits);
  if (!value) reject(part, "expected a whole number");
  return *value;
}

std::optional<Action> action_of(const std::string& name) {
  for (const auto& [known, action] : kActions)
    if (name == known) return action;
  return std::nullopt;
}

void require_known(const std::string& point) {
  if (std::find(std::begin(kPoints), std::end(kPoints), point) != std::end(kPoints)) return;
  reject(point, "unknown place; known are " + joined(kPoints));
}

Failpoint parse_one(const std::string& text) {
  const auto words = split(text, ':');
  Failpoint failpoint;
  if (!words.empty()) failpoint.point = words[0];
  require_known(failpoint.point);
  for (std::size_t i = 1; i < words.size(); ++i) {
    const auto equals = std::min(words[i].find('='), words[i].size() - 1);
    const std::string key = words[i].substr(0, equals), value = words[i].substr(equals + 1);
    if (key == "rank") {
      failpoint.rank = static_cast<int>(read_number(words[i], value));
    } else if (key == "step") {
      failpoint.step = read_number(words[i], value);
    } else if (key == "newcomer") {
      failpoint.newcomer = read_number(words[i], value) != 0;
    } else if (key == "attempt") {
      failpoint.attempt = static_cast<int>(read_number(words[i], value));
    } else if (key == "once" && !value.empty()) {
      failpoint.once = value;
    } else if (const auto action = action_of(value); key == "action" && action) {
      failpoint.action = *action;
    } else {
      reject(words[i],
             "expected rank=N, step=N, newcomer=1, attempt=N, once=FILE, or action=kill, stop, "
             "exit, spin, sleep "
             "or break");
    }
  }
  const bool can_break = std::find(std::begin(kBreakable), std::end(kBreakable), failpoint.point) !=
                         std::end(kBreakable);
  if (failpoint.action == Failpoint::Action::kBreak && !can_break)
    reject(text, "action=break is for copy.middle and recovery.restored");
  return failpoint;
}

struct Armed {
  std::vector<Failpoint> failpoints;
  int rank = -1, attempt = 0;
  bool newcomer = false;
};

const Armed& armed() {
  static const Armed plan = [] {
    Armed read;
    read.failpoints = parse_failpoints(variable("WEFT_FAIL"));
    read.rank = number_variable("RANK").value_or(0);
    read.newcomer = is_variable_set("WEFT_NEWCOMER");
    read.attempt = number_variable("TORCHELASTIC_RESTART_COUNT").value_or(0);
    return read;
  }();
  return plan;
}

// False in a warm spare (weft/rank_link/spare.h) until it knows its rank: no failpoint is meant for
// it.
bool has_rank() {
  static std::atomic<bool> known{false};
  if (known.load(std::memory_order_relaxed)) return true;
  if (is_variable_set("WEFT_SPARE")) return false;
  known.store(true, std::memory_order_relaxed);
  return true;
}

// True if another process has failed here already.
bool is_used(const Failpoint& one) {
  return !one.once.empty() && ::access(one.once.c_str(), F_OK) == 0;
}

// False if another process has been faster.
bool use(const Failpoint& one) {
  if (one.once.empty()) return true;
  const int made = ::open(one.once.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (made >= 0) ::close(made);
  return made >= 0;
}

// The failpoint that this process has reached: one that breaks, or another one.
const Failpoint* find(const char* point, bool breaks) {
  if (!has_rank()) return nullptr;
  const Armed& plan = armed();
  for (const Failpoint& one : plan.failpoints) {
    if ((one.action == Failpoint::Action::kBreak) != breaks) continue;
    const bool here = one.point == point && (one.rank < 0 || one.rank == plan.rank) &&
                      (one.attempt < 0 || one.attempt == plan.attempt) &&
                      one.step <= step_now.load(std::memory_order_relaxed);
    if (here && (breaks || (one.newcomer == plan.newcomer && !is_used(one)))) return &one;
  }
  return nullptr;
}

// One line on stderr.
void print(const Failpoint& one) {
  const std::string line = "weft: failpoint " + one.point + ": process " +
                           std::to_string(::getpid()) + ", rank " + std::to_string(armed().rank) +
                           ", step " + std::to_string(step_now.load()) + "\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

std::vector<Failpoint> parse_failpoints(const std::string& text) {
  std::vector<Failpoint> all;
  for (const std::string& part : split(text, ';')) all.push_back(parse_one(part));
  return all;
}

void set_failpoint_step(std::int64_t step) noexcept { step_now.store(step); }

bool is_failpoint(const char* point) { return find(point, false) != nullptr; }

bool is_broken(const char* point) {
  static std::atomic<bool> is_printed{false};
  const Failpoint* const one = find(point, true);
  if (one != nullptr && !is_printed.exchange(true)) print(*one);
  return one != nullptr;
}

void failpoint(const char* point) {
  const Failpoint* const one = find(point, false);
  if (one == nullptr || !use(*one)) return;
  print(*one);
  switch (one->action) {
    case Action::kKill: ::raise(SIGKILL); break;
    case Action::kStop: ::raise(SIGSTOP); break;
    case Action::kExit: ::_exit(3);
    case Action::kSpin:
      for (std::atomic<int> turns = 0;;) turns.fetch_add(1, std::memory_order_relaxed);
    case Action::kSleep:
      for (;;) ::pause();
    case Action::kBreak: break;
  }
}

}  // namespace weft

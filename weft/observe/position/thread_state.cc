#include "weft/observe/position/thread_state.h"

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <sstream>

namespace weft::observe {
namespace {

using Kind = ThreadState::Kind;

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

Kind kind_of(char letter) {
  switch (letter) {
    case 'R': return Kind::kRuns;
    case 'D': return Kind::kBlocked;
    case 'T': return Kind::kStopped;
    case 't': return Kind::kTraced;
    case 'Z':
    case 'X': return Kind::kGone;
    default: return Kind::kSleeps;
  }
}

// True if the thread's control group does not run, or one above it: cgroup v2, then v1.
bool is_frozen(const std::string& thread) {
  std::ifstream groups(thread + "/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1),
                      path = line.substr(second + 1);
    if (controllers == "freezer" &&
        first_line("/sys/fs/cgroup/freezer" + path + "/freezer.state") == "FROZEN")
      return true;
    if (!controllers.empty()) continue;
    for (const char* root : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
      std::ifstream events(root + path + "/cgroup.events");
      for (std::string event; std::getline(events, event);)
        if (event == "frozen 1") return true;
    }
  }
  return false;
}

// Nanoseconds: of the scheduler where it counts them, else in ticks of the clock.
std::chrono::nanoseconds cpu_of(const std::string& thread, std::istringstream& after_state) {
  std::int64_t nanoseconds = 0;
  if (std::ifstream(thread + "/schedstat") >> nanoseconds)
    return std::chrono::nanoseconds(nanoseconds);
  std::string skipped;
  for (int field = 4; field < 14; ++field) after_state >> skipped;
  std::int64_t user = 0, system = 0;
  after_state >> user >> system;
  return std::chrono::nanoseconds((user + system) * (1'000'000'000 / ::sysconf(_SC_CLK_TCK)));
}

}  // namespace

std::string to_string(const ThreadState& state) {
  const std::string where = state.where.empty() ? "" : " in " + state.where;
  switch (state.kind) {
    case Kind::kGone: return "gone";
    case Kind::kRuns: return "runs";
    case Kind::kSleeps: return "sleeps" + where;
    case Kind::kBlocked: return "blocked" + where;
    case Kind::kStopped: return "stopped by a signal";
    case Kind::kTraced: return "stopped by a debugger";
    case Kind::kFrozen: return "frozen by its cgroup";
  }
  return "";
}

ThreadState read_thread_state(pid_t pid, pid_t thread) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/task/" + std::to_string(thread);
  ThreadState state;
  const std::string line = first_line(folder + "/stat");
  const auto name_end = line.rfind(')');  // the name may contain anything
  if (name_end == std::string::npos || name_end + 2 >= line.size()) return state;
  std::istringstream rest(line.substr(name_end + 2));
  char letter = 0;
  rest >> letter;
  state.kind = kind_of(letter);
  state.cpu = cpu_of(folder, rest);
  if (!state.is_asleep()) return state;
  if (is_frozen(folder)) {
    state.kind = Kind::kFrozen;
    return state;
  }
  state.where = first_line(folder + "/wchan");
  if (state.where == "0") state.where.clear();
  return state;
}

}  // namespace weft::observe

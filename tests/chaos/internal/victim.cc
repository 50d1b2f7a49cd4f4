#include "tests/chaos/internal/victim.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace weft::chaos::internal {
namespace {

// The fields of /proc/PID/stat after the name: state, parent, …; empty if there is no such process.
std::vector<std::string> stat_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream words(text.substr(name_end + 1));
  std::vector<std::string> fields;
  for (std::string word; words >> word;) fields.push_back(word);
  return fields;
}

bool has_variable(const std::filesystem::path& environment, const std::string& variable) {
  std::ifstream file(environment);
  for (std::string one; std::getline(file, one, '\0');) {
    if (one == variable) return true;
  }
  return false;
}

std::string first_line(const std::filesystem::path& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

}  // namespace

std::vector<pid_t> all_processes() {
  std::vector<pid_t> found;
  std::error_code gone;
  for (std::filesystem::directory_iterator at("/proc", gone), end; !gone && at != end;
       at.increment(gone)) {
    const std::string name = at->path().filename().string();
    pid_t pid = 0;
    const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error == std::errc() && rest == name.data() + name.size()) found.push_back(pid);
  }
  return found;
}

std::optional<ProcessId> identify(pid_t pid) {
  constexpr std::size_t kStart = 19;  // starttime is field 22, and state is field 3
  const auto fields = stat_of(pid);
  if (fields.size() <= kStart || fields[0] == "Z" || fields[0] == "X") return std::nullopt;
  return ProcessId{pid, std::stoull(fields[kStart])};
}

std::optional<ProcessId> find_rank(pid_t parent, int rank) {
  constexpr std::size_t kParent = 1;
  const std::string name = "weft rank " + std::to_string(rank),
                    variable = "RANK=" + std::to_string(rank);
  std::optional<ProcessId> youngest;
  for (const pid_t pid : all_processes()) {
    const auto fields = stat_of(pid);
    if (fields.size() <= kParent || fields[kParent] != std::to_string(parent)) continue;
    const std::string folder = "/proc/" + std::to_string(pid);
    if (first_line(folder + "/comm") != name && !has_variable(folder + "/environ", variable))
      continue;
    const auto found = identify(pid);
    if (found && (!youngest || found->start >= youngest->start)) youngest = found;
  }
  return youngest;
}

std::optional<Victim> Victim::open(const ProcessId& id) {
  // By number: glibc 2.36 declares pidfd_open() without extern "C".
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, id.pid, 0)));
  // The descriptor names the process that had the number when it was opened.
  if (!pidfd || identify(id.pid) != id) return std::nullopt;
  return Victim(id, std::move(pidfd));
}

bool Victim::send(int signal) const {
  return ::syscall(SYS_pidfd_send_signal, pidfd_.get(), signal, nullptr, 0) == 0;
}

bool Victim::has_ended() const {
  pollfd ended{pidfd_.get(), POLLIN, 0};
  return ::poll(&ended, 1, 0) == 1;
}

char Victim::state() const {
  if (has_ended()) return 0;
  const auto fields = stat_of(id_.pid);
  return fields.empty() ? '\0' : fields[0][0];
}

std::string describe_process(pid_t pid) {
  namespace fs = std::filesystem;
  std::string text = "process " + std::to_string(pid) + " (" +
                     first_line("/proc/" + std::to_string(pid) + "/comm") + ")\n";
  std::error_code gone;
  for (fs::directory_iterator at("/proc/" + std::to_string(pid) + "/task", gone), end;
       !gone && at != end; at.increment(gone)) {
    const fs::path& task = at->path();
    const auto fields = stat_of(static_cast<pid_t>(std::stoi(task.filename().string())));
    text += "  thread " + task.filename().string() + " (" + first_line(task / "comm") + ") " +
            (fields.empty() ? "gone" : fields[0]) + ", in " + first_line(task / "wchan") +
            ", system call " + first_line(task / "syscall").substr(0, 40) + "\n";
  }
  return text;
}

}  // namespace weft::chaos::internal

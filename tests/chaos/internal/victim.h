// One process, identified by its number and start time and signaled through a pidfd: a signal never
// reaches another process that has got the same number.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/file.h"

namespace weft::chaos::internal {

struct ProcessId {
  pid_t pid = -1;
  std::uint64_t start = 0;  // Start time in clock ticks since boot (/proc/PID/stat).
  bool operator==(const ProcessId&) const = default;
};
std::vector<pid_t> all_processes();
// The process with this number now. nullopt: there is none, or it has ended.
std::optional<ProcessId> identify(pid_t pid);

// The child of `parent` that is this rank of a job: by its name ("weft rank 1", of a fork of the
// launcher), or by RANK in its environment. Of several, the youngest.
std::optional<ProcessId> find_rank(pid_t parent, int rank);

class Victim {
 public:
  // nullopt: the process has ended.
  static std::optional<Victim> open(const ProcessId& id);

  pid_t pid() const { return id_.pid; }
  // False: the process has ended.
  bool send(int signal) const;
  bool has_ended() const;
  // State in /proc/PID/stat: R, S, D, T (stopped), Z …; 0 if it has ended.
  char state() const;

 private:
  Victim(const ProcessId& id, UniqueFd pidfd) : id_(id), pidfd_(std::move(pidfd)) {}
  ProcessId id_;
  UniqueFd pidfd_;
};

// A process and the state and wait of each of its threads, a line each: for a job that hangs.
std::string describe_process(pid_t pid);

}  // namespace weft::chaos::internal

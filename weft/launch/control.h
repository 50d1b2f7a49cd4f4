// Control: requests to a launcher that runs, from `weft scale` and other commands of the same user.
//
// A launcher listens on a socket in Linux's abstract namespace, and answers processes of its own
// user only. Its name has the launcher's process number and the inode of its namespace of process
// numbers: containers may share a network, and then have launchers with the same number. A request
// and its answer are one line each.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/deadline.h"
#include "weft/launch/process.h"

namespace weft::launch {

// Inode of the namespace that this process's number is in; 0: unknown.
ino_t own_pid_namespace();

// A launcher of this host.
struct LauncherId {
  LauncherId(pid_t number, ino_t numbers = own_pid_namespace())  // NOLINT: as good as a number
      : pid(number), pid_namespace(numbers) {}
  bool operator==(const LauncherId&) const = default;
  pid_t pid;
  ino_t pid_namespace;
};

// The launcher's side. Never waits. Used by one thread.
class ControlSocket {
 public:
  // Listens as LauncherId(getpid()). Throws Error(kUnavailable).
  ControlSocket();

  // Adds the descriptors to wait for.
  void watch(std::vector<pollfd>& watched) const;
  // Reads new requests and calls `answer` for each that has no answer yet. `answer` returns nullopt
  // if the answer comes later; it is then called again.
  void serve(const std::function<std::optional<std::string>(const std::string& request)>& answer);

 private:
  struct Client {
    Fd socket;
    std::string request;  // empty: not read yet
  };
  void accept_clients();

  Fd listener_;
  std::vector<Client> clients_;
};

// Sends a request to the launcher and returns its answer. Throws Error:
// - kInvalidArgument if there is no such launcher of this user;
// - kUnavailable if it ends before it answers, or has too many requests waiting;
// - kTimeout after the deadline.
std::string ask_launcher(const LauncherId& launcher, const std::string& request, Deadline deadline);

// The launcher of a live run, from its run folder: the one of this host that answers the request
// "run" with the folder, that of rank 0's node first. Throws Error(kInvalidArgument) if the run has
// ended or was not started by weft's launcher.
LauncherId launcher_of_run(const std::string& run_folder);

}  // namespace weft::launch

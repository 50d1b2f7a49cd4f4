// Control: requests to a launcher that runs, from `weft scale` and other commands of the same user.
//
// A launcher listens on a socket named after its process number, in Linux's abstract namespace, and
// answers processes of its own user only. A request and its answer are one line each.
#pragma once

#include <poll.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/deadline.h"
#include "weft/launch/process.h"

namespace weft::launch {

// The launcher's side. Never waits. Used by one thread.
class ControlSocket {
 public:
  // Listens under this process's number. Throws Error(kUnavailable).
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

// Sends a request to the launcher `pid` and returns its answer. Throws Error:
// - kInvalidArgument if there is no such launcher of this user;
// - kUnavailable if it ends before it answers, or has too many requests waiting;
// - kTimeout after the deadline.
std::string ask_launcher(pid_t pid, const std::string& request, Deadline deadline);

// The launcher of a live run, from its run folder: that of rank 0's node, or else the one of this
// host that answers the request "run" with the folder. Throws Error(kInvalidArgument) if the run
// has ended or was not started by weft's launcher.
pid_t launcher_of_run(const std::string& run_folder);

}  // namespace weft::launch

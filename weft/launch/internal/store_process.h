// A process beside the ranks that hosts the c10d::TCPStore. So the launcher has no threads and may
// fork at any time, and each attempt gets a store without old keys. If the launcher is killed, this
// process kills the processes that the ranks have started and removes the run's folder.
#pragma once

#include <unistd.h>

#include <array>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>

#include "weft/launch/process.h"

namespace weft::launch::internal {

// Makes a listening socket on `host`, an address of this machine. Port 0: a free port. Throws
// kBadConfig if the port is in use or the host is not this machine. *bound receives the port.
Fd listen_for_store(const std::string& host, int port, int* bound);

class StoreProcess {
 public:
  struct Options {
    int listener = -1;  // none: another node hosts the store
    std::string host;
    int port = 0;
    std::string lost_key;          // key in the store, see tell_lost()
    std::string gone_key;          // key in the store, see tell_gone()
    std::filesystem::path folder;  // removed if the launcher is killed; empty: none
  };
  explicit StoreProcess(const Options& options);

  int pidfd() const { return process_.pidfd(); }
  // Also sends messages that had to wait, so call it often.
  std::optional<ExitStatus> poll() {
    send_unsent();
    return process_.poll();
  }
  // If the launcher ends without notice, the store process kills the guarded process groups. A rank
  // calls guard() itself before its program starts; otherwise, if the launcher were killed at that
  // moment, processes started by the program would remain. forget() removes a group.
  void guard(pid_t group) { tell({group}); }
  void forget(pid_t group) { tell({-group}); }
  // Stores the number of a failed rank, for ranks that wait for it. The first one stays.
  void tell_lost(int rank) { tell({0, rank}); }
  // Adds the number of a lost rank that will not be replaced, for ranks that form the group again.
  void tell_gone(int rank) { tell({0, -1, rank}); }
  // The rank was started again.
  void tell_back(int rank) { tell({0, -1, rank, '+'}); }
  // A process is started in place of the lost rank; it has joined the others.
  void tell_coming(int rank) { tell({0, -1, rank, '*'}); }
  void tell_joined(int rank) { tell({0, -1, rank, '='}); }

  // True while messages wait, since the process does not read: it was stopped, for example.
  bool has_unsent() const { return !unsent_.empty(); }

  // A message of the launcher, small enough for the socket to take it whole.
  struct Message {
    pid_t group = 0;  // to guard; negative: to forget; 0: none
    int lost = -1;    // rank; -1: none
    int gone = -1;    // rank; -1: none
    char sign = 0;    // of `gone` (comm::gone_ranks_key()); 0: none
  };

 private:
  StoreProcess(const Options& options, std::array<Fd, 2> ends);
  void tell(Message message);
  void send_unsent();

  Fd lifeline_;  // the store process waits until it is closed
  Process process_;
  const pid_t owner_ = ::getpid();
  std::deque<Message> unsent_;
};

}  // namespace weft::launch::internal

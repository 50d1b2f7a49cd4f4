// A process beside the ranks that hosts the c10d::TCPStore. So the launcher has no threads and may
// fork at any time, and each attempt gets a store without old keys. If the launcher is killed, this
// process kills the processes that the ranks have started and removes the run's folder.
#pragma once

#include <array>
#include <filesystem>
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
  std::optional<ExitStatus> poll() { return process_.poll(); }
  // If the launcher ends without notice, the store process kills the guarded process groups. A rank
  // calls guard() itself before its program starts; otherwise, if the launcher were killed at that
  // moment, processes started by the program would remain. forget() removes a group.
  void guard(pid_t group) { tell({group, -1, -1, false}); }
  void forget(pid_t group) { tell({-group, -1, -1, false}); }
  // Stores the number of a failed rank, for ranks that wait for it. The first one stays.
  void tell_lost(int rank) { tell({0, rank, -1, false}); }
  // Adds the number of a lost rank that will not be replaced, for ranks that form the group again.
  void tell_gone(int rank) { tell({0, -1, rank, false}); }
  // The rank was started again.
  void tell_back(int rank) { tell({0, -1, rank, true}); }

  // A message of the launcher, small enough for the socket to take it whole.
  struct Message {
    pid_t group;  // to guard; negative: to forget; 0: none
    int lost;     // rank; -1: none
    int gone;     // rank; -1: none
    bool back;    // `gone` was started again
  };

 private:
  StoreProcess(const Options& options, std::array<Fd, 2> ends);
  void tell(Message message);

  Fd lifeline_;  // the store process waits until it is closed
  Process process_;
};

}  // namespace weft::launch::internal

// The process beside the ranks. It holds the c10d::TCPStore, so that the launcher has no thread and
// may fork at any time and each attempt gets a store without old keys; and it outlives a launcher
// that is killed, to kill what the ranks have started and remove the run's folder.
#pragma once

#include <array>
#include <filesystem>
#include <string>

#include "weft/launch/process.h"

namespace weft::launch::internal {

// A listening socket on `host`, an address of this machine; port 0 takes a free one. Throws
// kBadConfig when the port is taken or the host is not here. *bound is the port.
Fd listen_for_store(const std::string& host, int port, int* bound);

class StoreProcess {
 public:
  struct Options {
    int listener = -1;  // none: another node holds the store
    std::string host;
    int port = 0;
    std::string lost_key;          // of the store: see tell_lost()
    std::filesystem::path folder;  // removed should the launcher be killed; empty: none
  };
  explicit StoreProcess(const Options& options);

  int pidfd() const { return process_.pidfd(); }
  std::optional<ExitStatus> poll() { return process_.poll(); }
  // The store process kills the guarded process groups when the launcher ends without another word.
  // A rank calls guard() itself, before its program starts: a launcher that is killed just then
  // would leave what the program has started. forget() takes a group out again.
  void guard(pid_t group) { tell({group, -1}); }
  void forget(pid_t group) { tell({-group, -1}); }
  // Leaves the number of a rank that has failed in the store, for ranks that wait for it there. The
  // first one stays.
  void tell_lost(int rank) { tell({0, rank}); }

  // One message of the launcher. Small, so that the socket takes it whole.
  struct Message {
    pid_t group;  // to guard; negative: to forget; 0: none
    int lost;     // rank; -1: none
  };

 private:
  StoreProcess(const Options& options, std::array<Fd, 2> ends);
  void tell(Message message);

  Fd lifeline_;  // its closing is what the store process waits for
  Process process_;
};

}  // namespace weft::launch::internal

// The store process of this node (weft_store, see weft/store/server.h): started by the launcher,
// started again when it ends, stopped with the launcher. It holds no libtorch.
//
//   JobStoreProcess store({.job = run_id});          // before this process starts a thread
//   setenv("WEFT_STORE", store.socket())             // for ranks; store::Client asks it
//   poll pidfd(): store.tend(now)                    // in the launcher's event loop
//
// Sockets, journal and secret belong to this object, so a new process continues with all data.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "weft/launch/internal/restarts.h"
#include "weft/launch/process.h"
#include "weft/store/client.h"

namespace weft::launch::internal {

class JobStoreProcess {
 public:
  using Time = Deadline::Clock::time_point;

  struct Options {
    std::string job;     // run id; store processes of other jobs are refused
    int node = 0;        // number of this node
    int nodes = 1;       // nodes that must be there before the store is founded
    int secret_fd = -1;  // file of 32 bytes, the same on all nodes; -1: none
    // Several nodes: a listening TCP socket, the "host:port" at which other nodes reach it, and
    // addresses of store processes of other nodes, of which one that lives suffices.
    Fd listener{};
    std::string address{};
    std::vector<std::string> seeds{};
    // "etcd://host:port,…/prefix": the store is etcd, and the fields of several nodes are not used.
    std::string rendezvous{};
    // Path of weft_store. Empty: it lies beside this program.
    std::string program{};
  };

  // Starts the process. Throws Error(kUnavailable) if the system cannot, or if there is no
  // weft_store.
  explicit JobStoreProcess(Options options);
  // Ends the process. Waits at most 1 s, then kills it.
  ~JobStoreProcess();
  JobStoreProcess(const JobStoreProcess&) = delete;
  JobStoreProcess& operator=(const JobStoreProcess&) = delete;

  // Value of WEFT_STORE for ranks of this node.
  const std::string& socket() const { return listener_.name; }
  // Readable once the process has ended: then call tend(). -1 while it waits to be started again.
  int pidfd() const { return process_ ? process_->pidfd() : -1; }
  pid_t pid() const { return process_ ? process_->pid() : -1; }
  // Starts the process again if it has ended and its pause is over. Returns when to call this
  // again, if not only when pidfd() is readable.
  std::optional<Time> tend(Time now);

 private:
  void start(Time now);
  std::vector<std::string> command_line(int lifeline) const;
  std::vector<int> descriptors(int lifeline) const;

  Options options_;
  store::LocalListener listener_;
  Fd journal_;
  Fd lifeline_;
  std::optional<Process> process_;
  Restarts restarts_;
};

}  // namespace weft::launch::internal

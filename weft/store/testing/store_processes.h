// For tests: store processes of several nodes on this host, which a test starts, kills and stops,
// as launchers would hold them.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "weft/net/tcp/socket.h"
#include "weft/store/client.h"

namespace weft::store {

// The descriptors of one node's store process, and the process.
class StoreProcess {
 public:
  struct Options {
    std::string program;
    std::uint32_t node = 0, nodes = 1;
    std::string seed;                    // address of node 0
    std::vector<std::string> more = {};  // other arguments
    std::string secret = std::string(32, 's');
    std::string job = "test";
  };

  explicit StoreProcess(Options options)
      : options_(std::move(options)),
        listener_(listen_locally()),
        journal_(::memfd_create("journal", MFD_CLOEXEC)),
        secret_(::memfd_create("secret", MFD_CLOEXEC)) {
    write_all(secret_.get(), options_.secret, "secret");
    if (options_.nodes > 1) {
      peers_ = net::internal::listen_on("127.0.0.1", 0);
      address_ = "127.0.0.1:" + std::to_string(net::internal::bound_port(peers_));
    }
    start();
  }
  ~StoreProcess() { kill(); }

  void start() {
    int ends[2];
    ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends);
    lifeline_ = UniqueFd(ends[0]);
    const UniqueFd theirs(ends[1]);
    std::vector<std::string> arguments = {options_.program, "--clients-fd",
                                          std::to_string(listener_.fd.get()), "--lifeline-fd",
                                          std::to_string(theirs.get())};
    if (options_.more.empty()) {
      arguments.insert(arguments.end(), {"--journal-fd", std::to_string(journal_.get()), "--node",
                                         std::to_string(options_.node), "--founders",
                                         std::to_string(options_.nodes), "--job", options_.job});
    }
    if (options_.nodes > 1) {
      arguments.insert(arguments.end(), {"--peers-fd", std::to_string(peers_.get()), "--address",
                                         address_, "--secret-fd", std::to_string(secret_.get())});
      if (!options_.seed.empty()) arguments.insert(arguments.end(), {"--seed", options_.seed});
    }
    arguments.insert(arguments.end(), options_.more.begin(), options_.more.end());
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (const int fd :
         {listener_.fd.get(), theirs.get(), journal_.get(), secret_.get(), peers_.get()}) {
      if (fd >= 0) ::fcntl(fd, F_SETFD, 0);
    }
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }

  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  void stop() const { ::kill(pid_, SIGSTOP); }
  void go_on() const { ::kill(pid_, SIGCONT); }
  // The host is lost: the journal, too. The listening socket stays, as a restarted host's would.
  void lose() {
    kill();
    journal_ = UniqueFd(::memfd_create("journal", MFD_CLOEXEC));
  }
  // Closes the lifeline; returns the exit status of waitpid().
  int hang_up() {
    lifeline_.reset();
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

  pid_t pid() const { return pid_; }
  const std::string& socket() const { return listener_.name; }
  const std::string& address() const { return address_; }

 private:
  Options options_;
  LocalListener listener_;
  UniqueFd journal_, secret_, lifeline_;
  net::internal::Fd peers_;
  std::string address_;
  pid_t pid_ = -1;
};

// The store processes of all nodes of a job, and a client for each. The test defines the path
// WEFT_STORE_PROGRAM.
#ifdef WEFT_STORE_PROGRAM
class StoreNodes {
 public:
  explicit StoreNodes(std::uint32_t count) {
    for (std::uint32_t node = 0; node < count; ++node) {
      processes_.push_back(std::make_unique<StoreProcess>(
          StoreProcess::Options{.program = WEFT_STORE_PROGRAM,
                                .node = node,
                                .nodes = count,
                                .seed = node == 0 ? "" : processes_[0]->address()}));
      clients_.push_back(std::make_unique<Client>(processes_.back()->socket()));
    }
  }

  StoreProcess& process(std::uint32_t node) { return *processes_[node]; }
  Client& client(std::uint32_t node) { return *clients_[node]; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(processes_.size()); }

  // Waits until the node knows a leader that is not `other`, and that all nodes decide.
  std::uint32_t leader(std::uint32_t asked, std::optional<std::uint32_t> other = {}) {
    const Deadline deadline = Deadline::in(std::chrono::seconds(20));
    for (;;) {
      const StoreStatus status = client(asked).status(deadline);
      if (status.leader && status.leader != other && status.voters.size() == size())
        return *status.leader;
      if (deadline.passed()) throw std::runtime_error("the store has no leader");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

 private:
  std::vector<std::unique_ptr<StoreProcess>> processes_;
  std::vector<std::unique_ptr<Client>> clients_;
};
#endif

}  // namespace weft::store

// For tests: processes around a store that the test hosts, which may be stopped and killed. Not
// installed.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "weft/comm/allocator.h"
#include "weft/comm/init.h"

namespace weft::comm {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// Arguments of a process in a test.
struct Me {
  int id;
  StorePtr store;
  std::uint16_t port;
};

// Forks processes around a store that the test process hosts, as a launcher does.
class Processes {
 public:
  Processes(int count, const std::function<int(const Me&)>& body,
            const std::vector<std::string>& hosts = {}) {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        listen(listener, 64) != 0)
      throw std::runtime_error("listen");
    getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    for (int id = 0; id < count; ++id) {
      const pid_t child = fork();
      if (child == 0) {
        close(listener);
        if (!hosts.empty()) setenv("WEFT_HOST_ID", hosts[static_cast<std::size_t>(id)].c_str(), 1);
        _exit(run(id, body));
      }
      children_.push_back(child);
    }
    c10d::TCPStoreOptions options;
    options.port = port_;
    options.isServer = true;
    options.waitWorkers = false;
    options.masterListenFd = listener;
    store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }

  c10d::Store& store() { return *store_; }
  pid_t pid(int id) const { return children_[static_cast<std::size_t>(id)]; }
  void continues(int id) const { kill(pid(id), SIGCONT); }
  std::vector<int> codes() {
    std::vector<int> codes;
    for (const pid_t child : children_) {
      int status = 0;
      waitpid(child, &status, 0);
      codes.push_back(WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status));
    }
    return codes;
  }

 private:
  int run(int id, const std::function<int(const Me&)>& body) const {
    try {
      install_allocator();
      c10d::TCPStoreOptions options;
      options.port = port_;
      options.isServer = false;
      options.waitWorkers = false;
      return body({id, c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options), port_});
    } catch (const std::exception& error) {
      std::fprintf(stderr, "process %d: %s\n", id, error.what());
      return 99;
    }
  }

  std::uint16_t port_ = 0;
  std::vector<pid_t> children_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

}  // namespace weft::comm

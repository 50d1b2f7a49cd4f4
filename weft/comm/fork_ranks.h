// Ranks as forked processes of one program, without a launcher: for tests, and for programs that bring their own processes up.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <vector>

#include "weft/comm/allocator.h"
#include "weft/comm/backend.h"
#include "weft/comm/group.h"

namespace weft::comm {

// Forks `world` ranks that meet through a file; each returns what fn returns. Gives the exit codes (-signal for a killed one). `hosts` puts
// the ranks on hosts, as if they were several: a name for each rank.
inline std::vector<int> fork_ranks(int world, const std::string& transport, const std::function<int(const Group&)>& fn,
                                   const std::vector<std::string>& hosts = {}) {
  char path[] = "/tmp/weft-group-test-XXXXXX";
  close(mkstemp(path));
  std::vector<pid_t> children;
  for (int rank = 0; rank < world; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      int code = 99;
      try {
        if (!hosts.empty()) setenv("WEFT_HOST_ID", hosts[static_cast<std::size_t>(rank)].c_str(), 1);
        install_allocator();
        const auto store = c10::make_intrusive<c10d::FileStore>(path, world);
        const Group group(make_backend(store, rank, world, {.transport = transport, .timeout = std::chrono::seconds(20)}), "test");
        code = fn(group);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      }
      _exit(code);
    }
    children.push_back(child);
  }
  std::vector<int> codes;
  for (pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    codes.push_back(WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status));
  }
  unlink(path);
  return codes;
}

}  // namespace weft::comm

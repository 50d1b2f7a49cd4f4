// Runs ranks as forked processes of one program, without a launcher: for tests, and for programs
// that start their own processes.
#pragma once

#include <ATen/Parallel.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <vector>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/comm/allocator.h"
#include "weft/comm/backend.h"
#include "weft/comm/group.h"

namespace weft::comm {

namespace internal {

// Returns the exit codes of `children` (-signal for a killed one, 127 for one that another waiter
// has reaped). Kills those that have not ended after `patience`.
inline std::vector<int> exit_codes(const std::vector<pid_t>& children,
                                   std::chrono::seconds patience) {
  constexpr std::chrono::microseconds kMaxPause{5000};
  const auto deadline = Deadline::in(patience);
  std::vector<int> codes;
  for (const pid_t child : children) {
    int status = 0;
    pid_t ended = 0;
    for (auto pause = std::chrono::microseconds(100);
         (ended = waitpid(child, &status, WNOHANG)) == 0; pause = std::min(2 * pause, kMaxPause)) {
      if (deadline.passed()) kill(child, SIGKILL);
      std::this_thread::sleep_for(pause);
    }
    codes.push_back(ended < 0             ? 127
                    : WIFSIGNALED(status) ? -WTERMSIG(status)
                                          : WEXITSTATUS(status));
  }
  return codes;
}

}  // namespace internal

// Forks `world` ranks that meet through a file; each exits with the result of fn. Returns the exit
// codes (-signal for a killed rank). `hosts` has a host name for each rank and simulates several
// hosts. The ranks share the processors. Kills ranks that have not ended after `patience`. Throws
// Error(kUnavailable) if a file or process cannot be created; no process is left then.
inline std::vector<int> fork_ranks(int world, const BackendOptions& options,
                                   const std::function<int(const Group&)>& fn,
                                   const std::vector<std::string>& hosts = {},
                                   std::chrono::seconds patience = std::chrono::minutes(10)) {
  std::error_code nowhere;
  const auto folder = std::filesystem::temp_directory_path(nowhere);
  std::string path = ((nowhere ? "/tmp" : folder) / "weft-ranks-XXXXXX").string();
  const int file = mkstemp(path.data());
  if (file < 0)
    throw Error(Errc::kUnavailable, "cannot create the file for the rendezvous of the ranks: " +
                                        path + ": " + std::strerror(errno));
  close(file);
  std::vector<pid_t> children;
  for (int rank = 0; rank < world; ++rank) {
    const pid_t child = fork();
    if (child < 0) {
      const std::string why = std::strerror(errno);
      internal::exit_codes(children, std::chrono::seconds(0));
      unlink(path.c_str());
      throw Error(Errc::kUnavailable, "rank " + std::to_string(rank) + " of " +
                                          std::to_string(world) + " cannot be forked: " + why);
    }
    if (child == 0) {
      int code = 99;
      // In a new thread: where the parent has computed with OpenMP, its threads are missing in the
      // child, and the forked thread would wait for them.
      std::thread([&] {
        try {
          if (!hosts.empty())
            setenv("WEFT_HOST_ID", hosts[static_cast<std::size_t>(rank)].c_str(), 1);
          install_allocator();
          at::set_num_threads(
              std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / world));
          const auto store = c10::make_intrusive<c10d::FileStore>(path, world);
          const Group group(make_backend(store, rank, world, options), "test");
          code = fn(group);
        } catch (const std::exception& error) {
          std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        }
      }).join();
      _exit(code);
    }
    children.push_back(child);
  }
  const std::vector<int> codes = internal::exit_codes(children, patience);
  unlink(path.c_str());
  return codes;
}

// As above, with timeouts of 20 s.
inline std::vector<int> fork_ranks(int world, const std::string& transport,
                                   const std::function<int(const Group&)>& fn,
                                   const std::vector<std::string>& hosts = {},
                                   std::chrono::seconds patience = std::chrono::minutes(10)) {
  return fork_ranks(
      world,
      BackendOptions{.transport = parse_transport(transport), .timeout = std::chrono::seconds(20)},
      fn, hosts, patience);
}

}  // namespace weft::comm

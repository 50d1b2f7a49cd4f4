// For tests and benches: runs a function as the ranks of a Host, as threads or as forked processes.
#pragma once

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "weft/net/memory/host.h"

namespace weft::net::internal {

// Runs fn on `world` threads, each with its Host. Rethrows the first exception of any rank.
inline void run_threads(int world, const std::function<void(Host&)>& fn) {
  auto hosts = make_thread_hosts(world);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        fn(*hosts[static_cast<std::size_t>(rank)]);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// An exchange through memory mapped before the fork: strings of up to 200 bytes, a few rounds.
class ForkExchange {
 public:
  explicit ForkExchange(int world) : world_(world) {
    void* memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_ = new (memory) Shared;
  }
  Exchange of(int rank) {
    return [this, rank, round = 0](const std::string& mine) mutable {
      auto& cells = shared_->cells[round++];
      std::strncpy(cells[rank].text, mine.c_str(), sizeof cells[rank].text - 1);
      cells[rank].there.store(1);
      std::vector<std::string> all;
      for (int peer = 0; peer < world_; ++peer) {
        while (cells[peer].there.load() == 0) sched_yield();
        all.emplace_back(cells[peer].text);
      }
      return all;
    };
  }

 private:
  struct Cell {
    std::atomic<int> there{0};
    char text[200] = {};
  };
  struct Shared {
    Cell cells[16][64];
  };
  int world_;
  Shared* shared_;
};

// Forks `world` processes that exit with fn(rank). Returns their wait statuses.
inline std::vector<int> fork_ranks(
    int world, const std::function<int(int)>& fn,
    const std::function<void(const std::vector<pid_t>&)>& meanwhile = {}) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < world; ++rank) {
    const pid_t child = fork();
    if (child == 0) _exit(fn(rank));
    children.push_back(child);
  }
  if (meanwhile) meanwhile(children);
  std::vector<int> statuses;
  for (pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    statuses.push_back(status);
  }
  return statuses;
}

// The same for ranks of a Host. They exit with 99 after an uncaught exception, printed on stderr.
inline std::vector<int> run_processes(
    int world, const std::function<int(Host&)>& fn,
    const std::function<void(const std::vector<pid_t>&)>& meanwhile = {}) {
  ForkExchange exchange(world);
  const auto run = [&](int rank) {
    try {
      auto host = Host::connect({.rank = rank, .world = world, .exchange = exchange.of(rank)});
      return fn(*host);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      return 99;
    }
  };
  return fork_ranks(world, run, meanwhile);
}

}  // namespace weft::net::internal

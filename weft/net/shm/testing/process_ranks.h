// For the tests and the bench of shm: runs a function on the ranks of a group, as forked processes
// (ranks.h uses threads).
#pragma once

#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <exception>
#include <functional>
#include <vector>

#include "weft/net/shm/shm.h"

namespace weft::net::internal {

// `world` forked processes over one memfd. Each runs fn and exits with its result; an uncaught
// exception exits with 99.
class ShmProcesses {
 public:
  using Function = std::function<int(Endpoint&, std::span<std::byte> region)>;

  ShmProcesses(int world, const Function& fn) {
    const std::size_t bytes = shm_region_bytes(world);
    const int memory = memfd_create("weft-test", MFD_CLOEXEC);
    if (ftruncate(memory, static_cast<off_t>(bytes)) != 0)
      throw Error(Errc::kUnavailable, "no memory for the test");
    process_ids_ = static_cast<std::atomic<int>*>(
        mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    for (int rank = 0; rank < world; ++rank) {
      const pid_t child = fork();
      if (child == 0) _exit(run(rank, world, memory, bytes, fn));
      children_.push_back(child);
      process_ids_[rank].store(child);
    }
    close(memory);
  }
  ~ShmProcesses() {
    wait();
    munmap(process_ids_, 4096);
  }
  ShmProcesses(const ShmProcesses&) = delete;
  ShmProcesses& operator=(const ShmProcesses&) = delete;

  pid_t pid(int rank) const { return children_[static_cast<std::size_t>(rank)]; }
  // Exit codes by rank; 128 + the signal for a rank that was killed.
  std::vector<int> wait() {
    for (std::size_t rank = codes_.size(); rank < children_.size(); ++rank) {
      int status = 0;
      waitpid(children_[rank], &status, 0);
      codes_.push_back(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
    }
    return codes_;
  }

 private:
  int run(int rank, int world, int memory, std::size_t bytes, const Function& fn) const {
    try {
      auto* data = static_cast<std::byte*>(
          mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0));
      std::vector<int> processes;  // descriptors that are readable once the process has ended
      for (int peer = 0; peer < world; ++peer) {
        while (process_ids_[peer].load() == 0) sched_yield();
        processes.push_back(
            static_cast<int>(syscall(SYS_pidfd_open, process_ids_[peer].load(), 0)));
      }
      const auto lost_peer = [&]() -> std::optional<int> {
        for (int peer = 0; peer < world; ++peer) {
          pollfd ended{processes[static_cast<std::size_t>(peer)], POLLIN, 0};
          if (peer != rank && poll(&ended, 1, 0) == 1) return peer;
        }
        return std::nullopt;
      };
      const auto endpoint = make_shm({rank, world, 7, {data, bytes}, nullptr, lost_peer, 0});
      return fn(*endpoint, {data, bytes});
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      return 99;
    }
  }

  std::atomic<int>* process_ids_ = nullptr;  // process ids by rank
  std::vector<pid_t> children_;
  std::vector<int> codes_;
};

}  // namespace weft::net::internal

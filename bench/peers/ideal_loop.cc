// Measures a lower bound for the time of a collective of two ranks on one host. From 1 MiB on, two
// threads share the vectors of both ranks: each does half of the work, directly from one vector to
// the other, without any protocol. For smaller vectors, ping_pong and barrier, the bound is the
// time in which a cache line moves from one core to the other, for every size.
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <iostream>
#include <string>
#include <thread>

#include "bench/peers/command.h"

namespace weft::bench {
namespace {

constexpr const char* kImpl = "ideal";
// Below this size, two cores that share the work wait for each other longer than they work.
constexpr std::size_t kMinBytes = 1 << 20;

// The cores of the process when it started. A thread inherits the binding of its parent.
const cpu_set_t kUsable = [] {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  ::sched_getaffinity(0, sizeof usable, &usable);
  return usable;
}();

void bind_to_core(int thread) {
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0, seen = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &kUsable) && seen++ == thread) CPU_SET(core, &one);
  }
  if (CPU_COUNT(&one) == 1) ::sched_setaffinity(0, sizeof one, &one);
}

// Uses pages of 2 MiB if the kernel has them, so that address translation does not limit the speed.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes) : bytes_(bytes) {
    data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw BadCommand("no memory for " + std::to_string(bytes) + " bytes");
    ::madvise(data_, bytes, MADV_HUGEPAGE);
  }
  ~Buffer() { ::munmap(data_, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  float* floats() const { return static_cast<float*>(data_); }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

// Spins, since the time is only valid if both threads are running. Yields now and then, in case
// there is only one core.
class SpinBarrier {
 public:
  void arrive() {
    const int round = round_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == 1) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
      if (spins % 10'000 == 9'999) std::this_thread::yield();
    }
  }

 private:
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> round_{0};
};

void sum_into_both(float* __restrict a, float* __restrict b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float sum = a[i] + b[i];
    a[i] = sum;
    b[i] = sum;
  }
}

void add(float* __restrict to, const float* __restrict from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] += from[i];
}

// A collective. The thread of half `half` runs work() on that half of both vectors: `a` is rank
// 0's, `b` is rank 1's.
struct Operation {
  const char* name;
  void (*work)(float* a, float* b, std::size_t count, int half);
  float (*result)(int rank, std::size_t i, int half);  // expected element i of `rank` in this half
};

constexpr std::array kOperations = {
    Operation{"all_reduce",
              [](float* a, float* b, std::size_t count, int) { sum_into_both(a, b, count); },
              [](int, std::size_t i, int) { return element_sum(2, i); }},
    Operation{"reduce_scatter",
              [](float* a, float* b, std::size_t count, int half) {
                half == 0 ? add(a, b, count) : add(b, a, count);
              },
              [](int rank, std::size_t i, int half) {
                return rank == half ? element_sum(2, i) : element(rank, i);
              }},
    Operation{"all_gather",  // thread 0 copies rank 0's half to rank 1, thread 1 the other way
              [](float* a, float* b, std::size_t count, int half) {
                half == 0 ? std::copy_n(a, count, b) : std::copy_n(b, count, a);
              },
              [](int, std::size_t i, int half) { return element(half, i); }},
    Operation{"broadcast",
              [](float* a, float* b, std::size_t count, int) { std::copy_n(a, count, b); },
              [](int, std::size_t i, int) { return element(0, i); }},
};

struct Case {
  const Command& command;
  const Operation& operation;
  float* a;
  float* b;
  std::size_t count;
  SpinBarrier meeting;

  void carry_out(int half) {
    const std::size_t middle = count / 2, begin = half == 0 ? 0 : middle;
    operation.work(a + begin, b + begin, half == 0 ? middle : count - middle, half);
  }
};

// Does half `half` of the work of every sample. Returns the times between barriers. The caller uses
// those of thread 0.
std::vector<double> work(Case& c, int half) {
  bind_to_core(half);
  std::vector<double> us;
  for (int sample = -c.command.warmup; sample < c.command.iterations; ++sample) {
    std::chrono::duration<double, std::micro> taken{};
    c.meeting.arrive();
    auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < c.command.block; ++call) {
      if (c.command.rewrite) {
        std::fill_n(half == 0 ? c.a : c.b, c.count, static_cast<float>(1 + half));
        c.meeting.arrive();
        start = std::chrono::steady_clock::now();
      }
      c.carry_out(half);
      c.meeting.arrive();
      if (c.command.rewrite) taken += std::chrono::steady_clock::now() - start;
    }
    if (!c.command.rewrite) taken = std::chrono::steady_clock::now() - start;
    if (sample >= 0) us.push_back(taken.count() / c.command.block);
  }
  return us;
}

// Measures half of the round trip of a cache line between two cores.
class Line {
 public:
  std::vector<double> ping(const Command& command) {
    std::jthread other([&] { pong((command.warmup + command.iterations) * kTurns); });
    bind_to_core(0);
    std::vector<double> us;
    for (int sample = -command.warmup; sample < command.iterations; ++sample) {
      const auto start = std::chrono::steady_clock::now();
      for (int turn = 0; turn < kTurns; ++turn) {
        const int mine = ball_.load(std::memory_order_relaxed) + 1;
        ball_.store(mine, std::memory_order_release);
        wait_for(mine + 1);
      }
      const std::chrono::duration<double, std::micro> taken =
          std::chrono::steady_clock::now() - start;
      if (sample >= 0) us.push_back(taken.count() / kTurns / 2);
    }
    return us;
  }

 private:
  static constexpr int kTurns = 1000;

  void pong(int turns) {
    bind_to_core(1);
    for (int turn = 0; turn < turns; ++turn) {
      wait_for(2 * turn + 1);
      ball_.store(2 * turn + 2, std::memory_order_release);
    }
  }
  void wait_for(int value) const {
    for (int spins = 0; ball_.load(std::memory_order_acquire) != value; ++spins) {
      if (spins % 10'000 == 9'999) std::this_thread::yield();
    }
  }

  alignas(64) std::atomic<int> ball_{0};
};

void fill(const Case& c) {
  for (std::size_t i = 0; i < c.count; ++i) {
    c.a[i] = element(0, i);
    c.b[i] = element(1, i);
  }
}

bool verify(Case& c) {
  fill(c);
  for (const int half : {0, 1}) c.carry_out(half);
  for (std::size_t i = 0; i < c.count; ++i) {
    const int half = i < c.count / 2 ? 0 : 1;
    if (c.a[i] != c.operation.result(0, i, half) || c.b[i] != c.operation.result(1, i, half))
      return false;
  }
  fill(c);
  return true;
}

const Operation& find(const std::string& name) {
  const auto* const found = std::ranges::find(kOperations, name, &Operation::name);
  if (found == kOperations.end()) {
    throw BadCommand(
        "from 1 MiB up the ideal loop knows all_reduce, reduce_scatter, all_gather and broadcast, "
        "not " +
        name);
  }
  return *found;
}

std::string carry_out(const Command& command) {
  if (command.bytes == 0 || command.bytes % sizeof(float) != 0)
    throw BadCommand("bytes must be a positive multiple of 4");
  if (command.bytes < kMinBytes || command.op == "barrier")
    return to_json(command, {kImpl, 2, true, Line().ping(command)});
  const Operation& operation = find(command.op);
  const Buffer a(command.bytes), b(command.bytes);
  Case c{command, operation, a.floats(), b.floats(), command.bytes / sizeof(float), {}};
  Answer answer{kImpl, 2, verify(c), {}};
  if (answer.verified) {
    std::jthread other([&c] { work(c, 1); });
    answer.us = work(c, 0);
  }
  return to_json(command, answer);
}

int serve() {
  for (std::string line; std::getline(std::cin, line);) {
    try {
      const auto command = parse_command(line);
      if (!command) break;
      std::cout << carry_out(*command) << std::endl;
    } catch (const BadCommand& bad) {
      std::cout << error_to_json(kImpl, bad.what()) << std::endl;
    }
  }
  return 0;
}

}  // namespace
}  // namespace weft::bench

int main() { return weft::bench::serve(); }

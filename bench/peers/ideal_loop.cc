// The least time in which two cores can all-reduce two vectors that both can reach: each of two threads sums half of both and
// writes the sum into both. Nothing is communicated; an all-reduce of two ranks on one host can't be faster than this.
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <iostream>
#include <string>
#include <thread>

#include "bench/peers/command.h"

namespace weft::bench {
namespace {

constexpr const char* kImpl = "ideal";

// Pages of 2 MiB where the kernel has them: the limit shouldn't be one of address translation.
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

// Both threads must be running for the time to mean anything, so this spins; with one core it yields.
class Meeting {
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

struct Case {
  const Command& command;
  float* a;
  float* b;
  std::size_t count;
  Meeting meeting;
};

// Half `half` of the work of every sample; thread 0's clock counts, from meeting to meeting.
std::vector<double> work(Case& c, int half) {
  const std::size_t begin = half * (c.count / 2);
  const std::size_t length = half == 0 ? c.count / 2 : c.count - c.count / 2;
  std::vector<double> us;
  for (int sample = -c.command.warmup; sample < c.command.iterations; ++sample) {
    c.meeting.arrive();
    const auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < c.command.block; ++call) {
      sum_into_both(c.a + begin, c.b + begin, length);
      c.meeting.arrive();
    }
    const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - start;
    if (sample >= 0) us.push_back(taken.count() / c.command.block);
  }
  return us;
}

void fill(const Case& c) {
  for (std::size_t i = 0; i < c.count; ++i) {
    c.a[i] = element(0, i);
    c.b[i] = element(1, i);
  }
}

bool verify(const Case& c) {
  fill(c);
  sum_into_both(c.a, c.b, c.count);
  for (std::size_t i = 0; i < c.count; ++i) {
    if (c.a[i] != element_sum(2, i) || c.b[i] != element_sum(2, i)) return false;
  }
  fill(c);
  return true;
}

std::string carry_out(const Command& command) {
  if (command.op != "all_reduce") throw BadCommand("the ideal loop knows all_reduce only, not " + command.op);
  if (command.bytes == 0 || command.bytes % sizeof(float) != 0) throw BadCommand("bytes must be a positive multiple of 4");
  const Buffer a(command.bytes), b(command.bytes);
  Case c{command, a.floats(), b.floats(), command.bytes / sizeof(float), {}};
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

// Runs one input and counts what it has on the heap: more than 64 MiB end the process. (What C
// libraries take by malloc() itself is not counted here; libFuzzer's -malloc_limit_mb sees it.)
#include <malloc.h>

#include <atomic>
#include <limits>
#include <new>
#include <utility>

#include "tests/fuzz/fuzz.h"

namespace {

constexpr std::ptrdiff_t kLimit = std::ptrdiff_t{64} << 20;
std::atomic<std::ptrdiff_t> on_heap{
    0};  // since the input's begin; below zero where earlier memory was freed
std::atomic<std::ptrdiff_t> most{0};  // of all inputs

void* allocate(std::size_t size) {
  if (size > kLimit ||
      on_heap.load(std::memory_order_relaxed) + static_cast<std::ptrdiff_t>(size) > kLimit) {
    std::fprintf(stderr,
                 "fuzz: %zu bytes are asked for where %td are on the heap: more than 64 MiB\n",
                 size, on_heap.load());
    std::abort();
  }
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  const auto taken = static_cast<std::ptrdiff_t>(::malloc_usable_size(memory));
  const auto now = on_heap.fetch_add(taken, std::memory_order_relaxed) + taken;
  if (now > most.load(std::memory_order_relaxed)) most.store(now, std::memory_order_relaxed);
  return memory;
}

void release(void* memory) {
  if (memory == nullptr) return;
  on_heap.fetch_sub(static_cast<std::ptrdiff_t>(::malloc_usable_size(memory)),
                    std::memory_order_relaxed);
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) { return allocate(size); }
void* operator new[](std::size_t size) { return allocate(size); }
// std::stable_sort asks for its buffer in this way.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static bool first = true;
  if (std::exchange(first, false)) {
    most = 0;
    std::atexit([] {
      std::fprintf(stderr, "fuzz: no input had more than %td KiB on the heap\n", most.load() >> 10);
    });
  }
  on_heap = 0;
  weft::fuzz::one_input(data, size);
  // Whatever the fuzzer itself takes until the next.
  on_heap = std::numeric_limits<std::ptrdiff_t>::min() / 2;
  return 0;
}

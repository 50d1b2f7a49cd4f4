#include "weft/base/process/id.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

namespace weft {
namespace {

using Id = std::atomic<pid_t>;

// The kernel gives a forked process a page of zeros in place of this one, so a child never reads
// the id of its parent there. Null if the kernel has no such pages.
Id* kept() noexcept {
  static Id* const page = []() -> Id* {
    constexpr std::size_t kBytes = 4096;
    void* const memory =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    if (::madvise(memory, kBytes, MADV_WIPEONFORK) == 0) return static_cast<Id*>(memory);
    ::munmap(memory, kBytes);
    return nullptr;
  }();
  return page;
}

}  // namespace

pid_t process_id() noexcept {
  Id* const id = kept();
  if (id == nullptr) return ::getpid();
  if (const pid_t known = id->load(std::memory_order_relaxed); known != 0) return known;
  const pid_t mine = ::getpid();
  id->store(mine, std::memory_order_relaxed);
  return mine;
}

}  // namespace weft

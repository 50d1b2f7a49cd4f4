#include "fork.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <mutex>

#include "weft/net/memory/heap.h"

namespace weft::python {
namespace {

constexpr int kPatienceMs = 60'000;

// The fork in progress. The forking thread holds the mutex, since the child has only that thread.
struct {
  std::mutex mutex;
  std::size_t used = 0;
  int copied[2] = {-1, -1};  // pipe; the child closes it after its copy or by dying
} fork_state;

void prepare() {
  fork_state.mutex.lock();
  fork_state.used = net::process_heap()->stats().footprint_bytes;
  if (pipe2(fork_state.copied, O_CLOEXEC) != 0) fork_state.copied[0] = fork_state.copied[1] = -1;
}

void in_parent() {
  if (fork_state.copied[0] >= 0) {
    close(fork_state.copied[1]);
    pollfd end{fork_state.copied[0], POLLIN, 0};
    poll(&end, 1, kPatienceMs);
    close(fork_state.copied[0]);
  }
  fork_state.mutex.unlock();
}

// Memory that is not copied becomes inaccessible: a child without its copy must not work on its
// parent's memory.
void in_child() {
  net::Heap& heap = *net::process_heap();
  const std::size_t used = fork_state.used;
  std::byte* const place = heap.data();
  if (used > 0) {
    void* const copy = mmap(nullptr, used, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (copy == MAP_FAILED) _exit(70);
    std::memcpy(copy, place, used);
    if (mremap(copy, used, used, MREMAP_MAYMOVE | MREMAP_FIXED, place) == MAP_FAILED) _exit(70);
  }
  constexpr int kNoMemory = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (heap.size() > used &&
      mmap(place + used, heap.size() - used, PROT_NONE, kNoMemory, -1, 0) == MAP_FAILED)
    _exit(70);
  for (const int end : fork_state.copied) {
    if (end >= 0) close(end);
  }
  fork_state.mutex.unlock();
}

}  // namespace

void copy_heap_on_fork() { pthread_atfork(prepare, in_parent, in_child); }

}  // namespace weft::python

#include "fork.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "weft/net/memory/heap.h"

namespace weft::python {
namespace {

constexpr int kNoCopy = 70;  // exit status of a child that cannot have its copy

// The fork in progress. The forking thread holds the mutex, since the child has only that thread.
struct {
  std::mutex mutex;
  std::size_t used = 0;
  int copied[2] = {-1, -1};  // pipe; the child closes it after its copy or by dying
  int error = 0;             // why there is no pipe
} fork_state;

void prepare() {
  fork_state.mutex.lock();
  fork_state.used = net::process_heap()->stats().end_bytes;
  fork_state.error = pipe2(fork_state.copied, O_CLOEXEC) == 0 ? 0 : errno;
}

void in_parent() {
  if (fork_state.error == 0) {
    close(fork_state.copied[1]);
    // Without a time limit: the parent must not write to memory that is being copied. A handler of
    // a signal ends a read early.
    char none;
    while (read(fork_state.copied[0], &none, 1) < 0 && errno == EINTR) {
    }
    close(fork_state.copied[0]);
  }
  fork_state.mutex.unlock();
}

// Ends the child in one line.
[[noreturn]] void refuse(const char* what, int error) {
  char line[256];
  const int length = std::snprintf(
      line, sizeof(line),
      "weft: the child of fork() ends, as it cannot copy its parent's tensors: %s: %s; free memory "
      "or descriptors, or start processes by spawn\n",
      what, strerrordesc_np(error));
  [[maybe_unused]] const auto written =
      write(STDERR_FILENO, line, std::min(sizeof(line) - 1, static_cast<std::size_t>(length)));
  _exit(kNoCopy);
}

// Memory that is not copied becomes inaccessible: a child without its copy must not work on its
// parent's memory. Without a pipe, the parent does not wait: a copy could have its later writes.
void in_child() {
  if (fork_state.error != 0) refuse("no pipe to the parent", fork_state.error);
  net::Heap& heap = *net::process_heap();
  const std::size_t used = fork_state.used;
  std::byte* const place = heap.data();
  if (used > 0) {
    void* const copy = mmap(nullptr, used, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (copy == MAP_FAILED) refuse("mmap", errno);
    std::memcpy(copy, place, used);
    if (mremap(copy, used, used, MREMAP_MAYMOVE | MREMAP_FIXED, place) == MAP_FAILED)
      refuse("mremap", errno);
  }
  constexpr int kNoMemory = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (heap.size() > used &&
      mmap(place + used, heap.size() - used, PROT_NONE, kNoMemory, -1, 0) == MAP_FAILED)
    refuse("mmap", errno);
  for (const int end : fork_state.copied) close(end);
  fork_state.mutex.unlock();
}

}  // namespace

void copy_heap_on_fork() { pthread_atfork(prepare, in_parent, in_child); }

}  // namespace weft::python

// A child of fork() gets a private copy of the process's heap:
//
//   before     The parent opens a pipe and reads how much of the heap is in use.
//   in parent  It waits until the child has closed the pipe: until then, it must not write to
//              memory that the child copies.
//   in child   It copies the part in use to new private memory, and moves this to the address of
//              the heap.
//
// These handlers are installed after those of the heap, so their first part runs before the heap
// takes its lock, and the others run after it has released it.
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

namespace weft::net {
namespace {

constexpr int kNoCopy = 70;  // exit status of a child that cannot have its copy

// The fork in progress. The forking thread holds the mutex, since the child has only that thread.
struct {
  std::mutex mutex;
  std::size_t used = 0;
  int copied[2] = {-1, -1};  // pipe; the child closes it after its copy or by dying
  int error = 0;             // why there is no pipe
} copied_fork;

void prepare_copied_fork() {
  copied_fork.mutex.lock();
  copied_fork.used = process_heap()->stats().end_bytes;
  copied_fork.error = pipe2(copied_fork.copied, O_CLOEXEC) == 0 ? 0 : errno;
}

void await_copy() {
  if (copied_fork.error == 0) {
    close(copied_fork.copied[1]);
    // Without a time limit: the parent must not write to memory that is being copied. A handler of
    // a signal ends a read early.
    char none;
    while (read(copied_fork.copied[0], &none, 1) < 0 && errno == EINTR) {
    }
    close(copied_fork.copied[0]);
  }
  copied_fork.mutex.unlock();
}

// Ends the child in one line.
[[noreturn]] void end_without_copy(const char* what, int error) {
  char line[256];
  const int length = std::snprintf(
      line, sizeof(line),
      "weft: the child of fork() ends, as it cannot copy its parent's tensors: %s: %s; free memory "
      "or descriptors, or start processes by posix_spawn() or Python's spawn\n",
      what, strerrordesc_np(error));
  [[maybe_unused]] const auto written =
      write(STDERR_FILENO, line, std::min(sizeof(line) - 1, static_cast<std::size_t>(length)));
  _exit(kNoCopy);
}

// Memory that is not copied becomes inaccessible: a child without its copy must not work on its
// parent's memory. Without a pipe, the parent does not wait: a copy could have its later writes.
void copy_in_child() {
  if (copied_fork.error != 0) end_without_copy("no pipe to the parent", copied_fork.error);
  Heap& heap = *process_heap();
  const std::size_t used = copied_fork.used;
  std::byte* const place = heap.data();
  if (used > 0) {
    void* const copy = mmap(nullptr, used, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (copy == MAP_FAILED) end_without_copy("mmap", errno);
    std::memcpy(copy, place, used);
    if (mremap(copy, used, used, MREMAP_MAYMOVE | MREMAP_FIXED, place) == MAP_FAILED)
      end_without_copy("mremap", errno);
  }
  constexpr int kNoMemory = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (heap.size() > used &&
      mmap(place + used, heap.size() - used, PROT_NONE, kNoMemory, -1, 0) == MAP_FAILED)
    end_without_copy("mmap", errno);
  for (const int end : copied_fork.copied) close(end);
  copied_fork.mutex.unlock();
}

}  // namespace

void copy_heap_on_fork() { pthread_atfork(prepare_copied_fork, await_copy, copy_in_child); }

}  // namespace weft::net

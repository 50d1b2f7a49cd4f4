// renew() replaces shared memory under running threads. No thread may lose a write, and none may
// find the address unmapped. The steps:
//
//   1. Install a SIGSEGV handler that lets a thread which writes to the region try again.
//   2. Protect the region: no thread of this process can change it from here on. Reads go on.
//   3. Copy the contents into the new memory through its descriptor, so it needs no second mapping.
//   4. Map the new memory over the old one, writable, in one mmap().
//
// Writers that wait in step 2 to 4 find the new memory at their next try. One region moves at a
// time (a static mutex), since the handler knows one range. The handler may run on any thread at
// any time, so the range is atomic. At a fault elsewhere it puts the previous handler back.
#include "weft/net/memory/internal/region.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "weft/base/error.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace weft::net {
namespace {

int make_memory(std::size_t bytes) {
  const int fd = memfd_create("weft", MFD_CLOEXEC);
  if (fd < 0)
    throw Error(Errc::kUnavailable,
                std::string("shared memory: memfd_create: ") + std::strerror(errno));
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    close(fd);
    throw Error(Errc::kUnavailable, "shared memory of " + std::to_string(bytes >> 20) +
                                        " MiB: " + std::strerror(error));
  }
  return fd;
}

// While a region moves, it is write-protected. Threads that write to it enter this handler and
// retry until the move is done. Other faults are passed to the previous handler.
std::atomic<std::uintptr_t> moving_begin{0}, moving_end{0};
struct sigaction handled_before {};

void try_again(int, siginfo_t* info, void*) {
  const auto at = reinterpret_cast<std::uintptr_t>(info->si_addr);
  if (info->si_code == SEGV_ACCERR && at >= moving_begin.load() && at < moving_end.load()) {
    sched_yield();
    return;
  }
  // Returning repeats the instruction, whose fault then reaches the previous handler.
  sigaction(SIGSEGV, &handled_before, nullptr);
}

void let_writers_wait(const std::byte* begin, std::size_t bytes) {
  // A range with end 0 is empty: the handler never sees the new begin with the old end.
  moving_end.store(0);
  moving_begin.store(reinterpret_cast<std::uintptr_t>(begin));
  moving_end.store(reinterpret_cast<std::uintptr_t>(begin) + bytes);
  struct sigaction now {
  }, ours{};
  sigaction(SIGSEGV, nullptr, &now);
  if (now.sa_sigaction == &try_again) return;
  handled_before = now;
  ours.sa_sigaction = &try_again;
  ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigaction(SIGSEGV, &ours, nullptr);
}

bool write_all(int fd, const std::byte* data, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes;) {
    const ssize_t written =
        pwrite(fd, data + at, std::min<std::size_t>(bytes - at, 1 << 30), static_cast<off_t>(at));
    if (written <= 0 && errno != EINTR) return false;
    at += static_cast<std::size_t>(std::max<ssize_t>(written, 0));
  }
  return true;
}

}  // namespace

Region Region::create(std::size_t bytes) {
  bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  return map(make_memory(bytes), bytes);
}

Region Region::attach(int fd, std::size_t bytes) {
  struct stat status {};
  if (fstat(fd, &status) != 0 || static_cast<std::size_t>(status.st_size) < bytes) {
    close(fd);
    throw Error(Errc::kCorrupt, "shared memory of a peer is shorter than announced");
  }
  return map(fd, bytes);
}

Region Region::map(int fd, std::size_t bytes) {
  // Huge pages need an address aligned like the offset: reserves a little more, maps at the aligned
  // address, and releases the rest.
  const std::size_t reserve = bytes + kHugePage;
  void* hole =
      mmap(nullptr, reserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (hole == MAP_FAILED) {
    const int error = errno;
    close(fd);
    throw Error(Errc::kUnavailable, "address space of " + std::to_string(bytes >> 20) +
                                        " MiB: " + std::strerror(error));
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(hole);
  const auto aligned = (begin + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > begin) munmap(hole, aligned - begin);
  munmap(reinterpret_cast<void*>(aligned + bytes), begin + reserve - aligned - bytes);
  void* data = mmap(reinterpret_cast<void*>(aligned), bytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    munmap(reinterpret_cast<void*>(aligned), bytes);
    close(fd);
    throw Error(Errc::kUnavailable, "mapping " + std::to_string(bytes >> 20) +
                                        " MiB of shared memory: " + std::strerror(error));
  }
  madvise(data, bytes, MADV_DONTDUMP);
  Region region;
  region.data_ = static_cast<std::byte*>(data);
  region.size_ = bytes;
  region.fd_ = fd;
  return region;
}

Region::Region(Region&& other) noexcept { *this = std::move(other); }

Region& Region::operator=(Region&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  return *this;
}

Region::~Region() {
  if (data_ != nullptr) munmap(data_, size_);
  if (fd_ >= 0) close(fd_);
}

bool Region::collapse(std::size_t offset, std::size_t bytes) const noexcept {
  // The kernel rejects a range without any page, so this touches one small page of each huge page.
  // madvise() then makes all huge pages at once, several times faster than one fault per page.
  for (std::size_t at = offset; at < offset + bytes; at += kHugePage)
    *reinterpret_cast<volatile char*>(data_ + at) = 0;
  return madvise(data_ + offset, bytes, MADV_COLLAPSE) == 0;
}

bool Region::release(std::size_t offset, std::size_t bytes) const noexcept {
  return madvise(data_ + offset, bytes, MADV_REMOVE) == 0;
}

void Region::renew(std::size_t used) {
  static std::mutex mutex;  // one region moves at a time
  const std::lock_guard lock(mutex);
  const int fd = make_memory(size_);
  let_writers_wait(data_, size_);
  mprotect(data_, size_, PROT_READ);
  // The new mapping replaces the old one atomically, so that no thread finds the address unmapped.
  const bool moved = write_all(fd, data_, used) &&
                     mmap(data_, size_, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) != MAP_FAILED;
  if (!moved) {
    const int error = errno;
    mprotect(data_, size_, PROT_READ | PROT_WRITE);
    close(fd);
    throw Error(Errc::kUnavailable, "moving " + std::to_string(used >> 20) +
                                        " MiB of shared memory: " + std::strerror(error));
  }
  madvise(data_, size_, MADV_DONTDUMP);
  // Fails on a system without huge pages; the memory works without them.
  madvise(data_, used / kHugePage * kHugePage, MADV_COLLAPSE);
  close(fd_);
  fd_ = fd;
}

}  // namespace weft::net

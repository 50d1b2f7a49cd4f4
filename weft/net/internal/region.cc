#include "weft/net/internal/region.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "weft/base/error.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace weft::net {

Region Region::create(std::size_t bytes) {
  bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  const int fd = memfd_create("weft", MFD_CLOEXEC);
  if (fd < 0) throw Error(Errc::kUnavailable, std::string("shared memory: memfd_create: ") + std::strerror(errno));
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    close(fd);
    throw Error(Errc::kUnavailable, "shared memory of " + std::to_string(bytes >> 20) + " MiB: " + std::strerror(error));
  }
  return map(fd, bytes);
}

Region Region::attach(int fd, std::size_t bytes) {
  struct stat status {};
  if (fstat(fd, &status) != 0 || static_cast<std::size_t>(status.st_size) < bytes) {
    close(fd);
    throw Error(Errc::kCorrupt, "shared memory of a peer is shorter than it says");
  }
  return map(fd, bytes);
}

Region Region::map(int fd, std::size_t bytes) {
  // Huge pages need the address aligned as the offset is: reserve a little more, map at the aligned place, give the rest back.
  const std::size_t reserve = bytes + kHugePage;
  void* hole = mmap(nullptr, reserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (hole == MAP_FAILED) {
    const int error = errno;
    close(fd);
    throw Error(Errc::kUnavailable, "address space of " + std::to_string(bytes >> 20) + " MiB: " + std::strerror(error));
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(hole);
  const auto aligned = (begin + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > begin) munmap(hole, aligned - begin);
  munmap(reinterpret_cast<void*>(aligned + bytes), begin + reserve - aligned - bytes);
  void* data = mmap(reinterpret_cast<void*>(aligned), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    munmap(reinterpret_cast<void*>(aligned), bytes);
    close(fd);
    throw Error(Errc::kUnavailable, "mapping " + std::to_string(bytes >> 20) + " MiB of shared memory: " + std::strerror(error));
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
  // A range without any page is refused: each huge page gets its first small one here. The whole is then made at once, several times
  // faster than by a fault a page.
  for (std::size_t at = offset; at < offset + bytes; at += kHugePage) *reinterpret_cast<volatile char*>(data_ + at) = 0;
  return madvise(data_ + offset, bytes, MADV_COLLAPSE) == 0;
}

}  // namespace weft::net

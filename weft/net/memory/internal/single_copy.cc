#include "weft/net/memory/internal/single_copy.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

namespace weft::net::internal {

int read_process(int pid, std::uint64_t from, void* to, std::size_t bytes) noexcept {
  auto* at = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const iovec mine{at, bytes};
    const iovec theirs{reinterpret_cast<void*>(static_cast<std::uintptr_t>(from)), bytes};
    const ssize_t got = ::process_vm_readv(pid, &mine, 1, &theirs, 1, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0 ? errno : EFAULT;
    at += got;
    from += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
  return 0;
}

bool kernel_can_read(const void* data, std::size_t bytes) noexcept {
  if (bytes == 0) return true;
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  std::byte byte;
  return read_process(::getpid(), first, &byte, 1) == 0 &&
         read_process(::getpid(), first + bytes - 1, &byte, 1) == 0;
}

}  // namespace weft::net::internal

#include "tests/chaos/internal/full_disk.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/file.h"

namespace weft::chaos::internal {

bool private_mounts() {
  if (::geteuid() != 0 || ::unshare(CLONE_NEWNS) != 0) return false;
  return ::mount("none", "/", nullptr, MS_PRIVATE | MS_REC, nullptr) == 0 &&
         ::mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777") == 0;
}

FullDisk::FullDisk(std::string folder, std::uint64_t bytes)
    : folder_(std::move(folder)), filler_(folder_ + "/filler") {
  const std::string size = "size=" + std::to_string(bytes);
  if (::mount("tmpfs", folder_.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, size.c_str()) != 0)
    throw Error(Errc::kUnavailable, "cannot mount a small file system at " + folder_ + ": " +
                                        std::strerror(errno) + "; run as root");
}

FullDisk::~FullDisk() { ::umount2(folder_.c_str(), MNT_DETACH); }

bool FullDisk::fill() {
  const UniqueFd file(::open(filler_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!file) return errno == ENOSPC;
  const std::vector<char> bytes(std::size_t{1} << 20, 'x');
  for (std::size_t size = bytes.size(); size > 0;) {
    if (::write(file.get(), bytes.data(), size) >= 0) continue;
    if (errno != ENOSPC) return false;
    size /= 2;
  }
  return true;
}

void FullDisk::free() { ::unlink(filler_.c_str()); }

}  // namespace weft::chaos::internal

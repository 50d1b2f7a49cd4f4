#include "weft/engine/internal/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "weft/base/error.h"

namespace weft::parallel::internal {
namespace {

[[noreturn]] void fail(const std::filesystem::path& folder, const char* what, int error) {
  throw Error(Errc::kUnavailable,
              "offload to " + folder.string() + ": cannot " + what + ": " + std::strerror(error) +
                  "; choose a folder with free space",
              {"offload"});
}

// Reserves all space now: if the disk filled up later, a write to this memory would kill the
// process. In pieces, since a signal makes the kernel begin a piece again. Returns an errno, or 0.
int reserve(int file, std::size_t bytes) {
  constexpr std::size_t kPiece = 4 << 20;
  for (std::size_t at = 0; at < bytes; at += kPiece) {
    int error = 0;
    do {
      error = posix_fallocate(file, static_cast<off_t>(at),
                              static_cast<off_t>(std::min(kPiece, bytes - at)));
    } while (error == EINTR);
    if (error != 0) return error;
  }
  return 0;
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& folder, std::size_t bytes) : bytes_(bytes) {
  std::string name = (folder / "weft-optimizer-XXXXXX").string();
  const int file = mkstemp(name.data());
  if (file < 0) fail(folder, "make a file", errno);
  unlink(name.c_str());
  if (const int error = reserve(file, bytes); error != 0) {
    close(file);
    fail(folder, "reserve space in it", error);
  }
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int error = errno;
  close(file);
  if (data == MAP_FAILED) fail(folder, "map the file", error);
  data_ = static_cast<std::byte*>(data);
}

MappedFile::~MappedFile() { munmap(data_, bytes_); }

}  // namespace weft::parallel::internal

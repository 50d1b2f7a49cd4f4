#include "weft/base/space/reserve.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

namespace weft {

int reserve_space(int file, std::int64_t at, std::int64_t bytes) noexcept {
  constexpr std::int64_t kPiece = 4 << 20;
  for (const std::int64_t end = at + bytes; at < end; at += kPiece) {
    int error = 0;
    do {
      error = ::posix_fallocate(file, static_cast<off_t>(at),
                                static_cast<off_t>(std::min(kPiece, end - at)));
    } while (error == EINTR);
    if (error != 0) return error;
  }
  return 0;
}

}  // namespace weft

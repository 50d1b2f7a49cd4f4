// A pipe whose ends close themselves and are not inherited by started programs.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "weft/base/error.h"
#include "weft/launch/process.h"

namespace weft::launch::internal {

// Returns {read end, write end}. Throws kUnavailable, naming its purpose `what`, if no descriptor
// is left.
inline std::array<Fd, 2> make_pipe(const char* what) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw Error(Errc::kUnavailable,
                std::string("cannot create a pipe for ") + what + ": " + std::strerror(errno));
  return {Fd(ends[0]), Fd(ends[1])};
}

}  // namespace weft::launch::internal

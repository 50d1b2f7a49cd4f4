// Reserves space on the disk for memory of a file.
#pragma once

#include <cstdint>

namespace weft {

// Gives bytes [at, at + bytes) of a file their place on the disk now, and makes the file as long. A
// later write to mapped memory of a hole would kill the process if the disk were full then. Works
// in pieces, since a signal makes the kernel begin a piece again. Returns 0, or the error number:
// the pieces before the failed one stay reserved.
int reserve_space(int file, std::int64_t at, std::int64_t bytes) noexcept;

}  // namespace weft

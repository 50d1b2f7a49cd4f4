// describe() without memory, and the code of an error number of the system.
#pragma once

#include <cstddef>
#include <exception>

#include "weft/base/error.h"

namespace weft::internal {

// kInvalidArgument if a path or call is wrong or not permitted; kUnavailable if the machine has run
// out of something or failed.
Errc code_of_errno(int error_number) noexcept;

// True with WEFT_DEBUG=1 in the environment.
bool wants_full_text() noexcept;

// As describe(), into the memory at `out`, cut to `size` - 1 bytes and ended by a 0. Allocates
// nothing, so it works if memory has run out. Returns the length. `size`: at least 1.
std::size_t describe_into(const std::exception& error, char* out, std::size_t size) noexcept;

}  // namespace weft::internal

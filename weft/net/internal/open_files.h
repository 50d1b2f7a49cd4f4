// The limit of open files of this process (ulimit -n).
#pragma once

#include <cstddef>

namespace weft::net::internal {

// Raises the soft limit to the hard one if `more` files would not fit, as for the connections of a
// large group. Changes nothing otherwise: a program may use select(), which cannot use files from
// number 1024 on. Where the hard limit is too low, the call that needs a file fails later.
void allow_open_files(std::size_t more) noexcept;

}  // namespace weft::net::internal

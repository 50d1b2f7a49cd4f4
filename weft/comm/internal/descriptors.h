// Open files of a rank: those of a recovery are counted before it is needed.
#pragma once

#include <cstddef>

namespace weft::comm::internal {

// For ranks that may be replaced, when a group of the job's first attempt has connected. While the
// next groups form, most sockets of the old ones are still open. Raises this process's limit of
// open files (ulimit -n) as far as it may if that is too low, and throws Error(kBadConfig), with
// the number, if it cannot be high enough: another process would be refused as well.
void reserve_descriptors_for_recovery();

// The same as a function of the descriptors that are open, and of the network sockets among them.
std::size_t descriptors_of_recovery(std::size_t open, std::size_t sockets);

}  // namespace weft::comm::internal

// The id of this process without a system call, for checks on hot paths.
#pragma once

#include <sys/types.h>

namespace weft {

// Returns what getpid() returns, also after a fork. Costs a load. The first call of a process, and
// of each process forked from it, makes a system call. So does every call on a kernel without
// MADV_WIPEONFORK (Linux 4.14). Any thread may call it.
pid_t process_id() noexcept;

}  // namespace weft

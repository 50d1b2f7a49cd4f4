// Reads the memory of another process of this host: the kernel copies it once (process_vm_readv).
//
// The kernel allows it between processes of one user that are in one PID namespace, unless a policy
// forbids it: Yama's ptrace_scope, seccomp, or a process that is not dumpable.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::net::internal {

// Copies `bytes` at address `from` of process `pid` to `to`. Returns 0 or the error number: ESRCH
// if the process has ended, EFAULT if it has no such memory or the kernel cannot read it.
int read_process(int pid, std::uint64_t from, void* to, std::size_t bytes) noexcept;

// Whether the kernel can read the array for other processes. Memory of devices, for example, is
// mapped in a way that only the processor itself can read. Tries the first and the last byte.
bool kernel_can_read(const void* data, std::size_t bytes) noexcept;

}  // namespace weft::net::internal

// The number of CUDA devices, for tests that fork ranks.
#pragma once

#include <ATen/Context.h>
#include <sys/wait.h>
#include <unistd.h>

namespace weft::comm {

// Asked in a process of its own: a process that has used CUDA cannot fork ranks that use it.
inline int cuda_devices() {
  static const int count = [] {
    const pid_t child = fork();
    if (child == 0) _exit(at::hasCUDA() ? static_cast<int>(at::getNumGPUs()) : 0);
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status)
               ? WEXITSTATUS(status)
               : 0;
  }();
  return count;
}

}  // namespace weft::comm

#include "weft/comm/allocator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "weft/observe/memory.h"

namespace weft::comm {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

std::int64_t held() { return static_cast<std::int64_t>(observe::process_memory()); }

// Bytes that the process holds less after it has freed a tensor of 64 MiB and released the memory.
std::int64_t released() {
  at::Tensor tensor = at::empty({64 * kMiB}, at::kByte);
  std::memset(tensor.data_ptr(), 1, tensor.nbytes());
  const std::int64_t before = held();
  tensor.reset();
  release_memory();
  return before - held();
}

// In a process of its own, since the allocator stays.
TEST(ReleaseMemory, GivesThatOfFreedTensorsBack) {
  const auto succeeds = [] {
    const bool installed = install_allocator();
    // The place is used again.
    std::exit(!installed || (released() > 60 * kMiB && released() > 60 * kMiB) ? 0 : 1);
  };
  EXPECT_EXIT(succeeds(), testing::ExitedWithCode(0), "");
}

TEST(InstallAllocator, AForkedChildHasItsOwnCopyOfTheTensors) {
  const auto succeeds = [] {
    install_allocator();
    const at::Tensor tensor = at::full({1000}, 3.0F);
    const pid_t child = ::fork();
    if (child == 0) {
      const bool is_there = at::equal(tensor, at::full({1000}, 3.0F));
      tensor.fill_(1);
      ::_exit(is_there ? 0 : 1);
    }
    int status = 1;
    ::waitpid(child, &status, 0);
    std::exit(status == 0 && at::equal(tensor, at::full({1000}, 3.0F)) ? 0 : 1);
  };
  EXPECT_EXIT(succeeds(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace weft::comm

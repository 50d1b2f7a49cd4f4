// Plans for CUDA devices. The suite has the label gpu and is skipped without a device.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "weft/comm/testing/cuda_devices.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/parallel/compose/internal/on_device.h"

namespace weft::parallel {
namespace compose_cuda_test {

TEST(PlanGpu, TakesTheCurrentDeviceForOneWithoutAnIndex) {
  if (comm::cuda_devices() == 0)
    GTEST_SKIP() << "no CUDA device: libtorch was built without CUDA, or the machine has none";
  const auto codes = comm::fork_ranks(1, "auto", [](const Group&) {
    const at::Device device = internal::with_index(at::kCUDA);
    if (device != at::empty({1}, device).device()) return 1;
    internal::wait_for(device);
    return internal::with_index(at::kCPU).is_cpu() ? 0 : 2;
  });
  EXPECT_EQ(codes, std::vector<int>(1, 0));
}

}  // namespace compose_cuda_test
}  // namespace weft::parallel

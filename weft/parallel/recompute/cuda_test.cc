// Recomputation on CUDA devices. The suites have the label gpu and are skipped without a device.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <vector>

#include "weft/comm/testing/cuda_devices.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/parallel/recompute/recompute.h"

namespace weft::parallel {
namespace recompute_cuda_test {

const char* const kNoDevice =
    "no CUDA device: libtorch was built without CUDA, or the machine has none";

// The values of a run with and without recomputation, in a process of its own, are equal.
void expect_equal(const std::function<std::vector<at::Tensor>(bool again)>& values) {
  const auto codes = comm::fork_ranks(1, "auto", [&](const Group&) {
    const auto plain = values(false), again = values(true);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      if (plain[i].scalar_type() != again[i].scalar_type()) return 1;
      if (!torch::equal(plain[i].cpu(), again[i].cpu())) return 2;
    }
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>{0});
}

at::Tensor input() {
  return (torch::arange(64, at::kFloat).view({8, 8}) / 64).to(at::kCUDA).requires_grad_();
}

TEST(RecomputeGpu, DrawsTheSameDropoutAgain) {
  if (comm::cuda_devices() == 0) GTEST_SKIP() << kNoDevice;
  expect_equal([](bool again) {
    torch::manual_seed(3);
    const auto fn = [](const at::Tensor& x) { return torch::dropout(x.sin(), 0.5, true); };
    const at::Tensor x = input(), y = again ? recompute(fn, x) : fn(x);
    y.sum().backward();
    return std::vector<at::Tensor>{y.detach(), x.grad(), torch::rand({4}, at::kCUDA)};
  });
}

// Backward on a device runs in a thread of autograd, without the autocast of this one.
TEST(RecomputeGpu, ComputesInTheTypeOfTheFirstRun) {
  if (comm::cuda_devices() == 0) GTEST_SKIP() << kNoDevice;
  expect_equal([](bool again) {
    const auto fn = [](const at::Tensor& x) { return torch::matmul(x, x.t()); };
    const at::Tensor x = input();
    at::autocast::set_autocast_enabled(at::kCUDA, true);
    at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
    const at::Tensor y = again ? recompute(fn, x) : fn(x);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCUDA, false);
    y.sum().backward();
    return std::vector<at::Tensor>{y.detach(), x.grad()};
  });
}

}  // namespace recompute_cuda_test
}  // namespace weft::parallel

// Groups with CUDA devices. What needs one is labelled gpu and skipped, saying so, where there is none.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "weft/comm/testing/fork_ranks.h"
#include "weft/comm/init.h"

namespace weft::comm {
namespace {

const char* const kNoDevice = "no CUDA device: libtorch was built without CUDA, or the machine has none";

TEST(Nccl, SaysWhyItIsNotThere) {
  if (at::hasCUDA()) GTEST_SKIP() << "a CUDA device is there";
  try {
    form_group(c10::make_intrusive<c10d::HashStore>(), 0, 2, {.transport = "nccl"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kUnavailable);
    EXPECT_NE(std::string(error.what()).find("transport nccl"), std::string::npos);
  }
}

TEST(NcclGpu, ReducesOnOneDevice) {
  if (!at::hasCUDA()) GTEST_SKIP() << kNoDevice;
  const Group group = form_group(c10::make_intrusive<c10d::HashStore>(), 0, 1, {.transport = "nccl"});
  at::Tensor t = at::ones({1000}, at::kCUDA);
  group.all_reduce(t);
  EXPECT_TRUE(at::equal(t.cpu(), at::ones({1000})));
}

// Forked ranks touch CUDA first after the fork, as it demands; rank 0 is the one with a device where there is only one.
TEST(MixedGpu, CpuAndGpuRanksReduceTogetherOverTheWeftBackend) {
  if (!at::hasCUDA()) GTEST_SKIP() << kNoDevice;
  for (const bool both : {false, true}) {
    const auto codes = fork_ranks(2, "auto", [&](const Group& group) {
      const at::Device device(both || group.rank() == 0 ? at::kCUDA : at::kCPU);
      for (const std::int64_t count : {10, 1'000'000}) {
        at::Tensor t = at::full({count}, group.rank() + 1.0F, device);
        group.all_reduce(t);
        if (!at::equal(t.cpu(), at::full({count}, 3.0F))) return 1;
        group.broadcast(t.fill_(static_cast<float>(group.rank())), 1);
        if (!at::equal(t.cpu(), at::ones({count}))) return 2;
        at::Tensor all = at::empty({2 * count}, device);
        group.all_gather(all, t.fill_(static_cast<float>(group.rank())));
        if (!at::equal(all.cpu(), at::cat({at::zeros({count}), at::ones({count})}))) return 3;
        if (group.rank() == 0) group.send(t, 1);
        if (group.rank() == 1) group.recv(t, 0);
        if (!at::equal(t.cpu(), at::zeros({count}))) return 4;
      }
      return 0;
    });
    EXPECT_EQ(codes, std::vector<int>(2, 0)) << both;
  }
}

}  // namespace
}  // namespace weft::comm

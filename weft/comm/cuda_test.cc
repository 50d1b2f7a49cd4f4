// Groups with CUDA devices. Tests that need a device have the label gpu. Without a device they are
// skipped with a message.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "weft/base/file.h"
#include "weft/comm/init.h"
#include "weft/comm/testing/cuda_devices.h"
#include "weft/comm/testing/fork_ranks.h"

namespace weft::comm {
namespace {

const char* const kNoDevice =
    "no CUDA device: libtorch was built without CUDA, or the machine has none";

TEST(Nccl, SaysWhyItCannotBeUsed) {
  if (cuda_devices() > 0) GTEST_SKIP() << "a CUDA device is there";
  try {
    form_group(c10::make_intrusive<c10d::HashStore>(), 0, 2, {.transport = Transport::kNccl});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kBadConfig);
    EXPECT_NE(std::string(error.what()).find("transport nccl"), std::string::npos);
  }
}

at::Device device_of(const Group& group) {
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(group.rank()));
}

// Collectives of ranks with one device each. Results start with other values, so that a call
// without effect is noticed.
int run_nccl(const Group& world, const std::string& meeting) {
  const Group group = form_group(c10::make_intrusive<c10d::FileStore>(meeting, world.size()),
                                 world.rank(), world.size(), {.transport = Transport::kNccl});
  if (!group.has_device_backend()) return 1;
  const auto options = at::device(device_of(group));
  const at::Tensor mine = at::arange(1000, options.dtype(at::kFloat)) + group.rank();
  std::vector<at::Tensor> of_ranks;
  for (int rank = 0; rank < group.size(); ++rank)
    of_ranks.push_back(at::arange(1000, at::kFloat) + rank);
  const at::Tensor joined = at::cat(of_ranks);

  at::Tensor all = at::full_like(at::cat(std::vector<at::Tensor>(of_ranks.size(), mine)), -1);
  group.all_gather(all, mine);
  if (!at::equal(all.cpu(), joined)) return 2;
  at::Tensor part = at::full_like(mine, -1);
  group.reduce_scatter(part, all);
  if (!at::equal(part.cpu(), of_ranks[static_cast<std::size_t>(group.rank())] * group.size()))
    return 3;
  at::Tensor sum = mine.clone();
  group.all_reduce(sum);
  if (!at::equal(sum.cpu(), at::stack(of_ranks).sum(0))) return 4;

  // The same group with tensors in host memory, and a part of it with a device.
  at::Tensor host = of_ranks[static_cast<std::size_t>(group.rank())].clone();
  group.all_reduce(host);
  if (!at::equal(host, sum.cpu())) return 5;
  const Group again = group.duplicate("again");
  at::Tensor later = mine.clone();
  const Group::Work work = again.all_reduce_async(later);
  work->wait();
  if (!at::equal(later.cpu(), host)) return 6;
  if (!again.has_device_backend() && group.size() > 1) return 7;

  // A view that is not contiguous, and the values beside it.
  const at::Tensor columns = at::zeros({1000, 2}, options.dtype(at::kFloat));
  at::Tensor column = columns.select(1, 0);
  column.copy_(mine);
  group.all_reduce(column);
  if (!at::equal(column.cpu(), host)) return 8;
  if (group.size() > 1 && group.rank() == 0) group.send(column, 1);
  if (group.rank() == 1) group.recv(column.zero_(), 0);
  return at::equal(column.cpu(), host) && columns.select(1, 1).eq(0).all().item<bool>() ? 0 : 9;
}

TEST(NcclGpu, GathersAndScattersOnOneDevice) {
  if (cuda_devices() == 0) GTEST_SKIP() << kNoDevice;
  const TempDir folder;
  EXPECT_EQ(
      fork_ranks(1, "tcp", [&](const Group& world) { return run_nccl(world, folder / "meeting"); }),
      std::vector<int>(1, 0));
}

TEST(NcclGpu, GathersScattersAndSumsOverTwoDevices) {
  if (cuda_devices() == 0) GTEST_SKIP() << kNoDevice;
  if (cuda_devices() == 1) GTEST_SKIP() << "one CUDA device";
  const TempDir folder;
  EXPECT_EQ(
      fork_ranks(2, "tcp", [&](const Group& world) { return run_nccl(world, folder / "meeting"); }),
      std::vector<int>(2, 0));
}

// If there is one device, both ranks have it.
TEST(MixedGpu, CpuAndGpuRanksReduceTogetherOverTheWeftBackend) {
  if (cuda_devices() == 0) GTEST_SKIP() << kNoDevice;
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

// An operation takes what the caller's stream has written before the call, and the caller's stream
// may go on meanwhile.
TEST(MixedGpu, AnAsynchronousOperationWaitsForTheStreamOfItsCaller) {
  if (cuda_devices() == 0) GTEST_SKIP() << kNoDevice;
  const auto codes = fork_ranks(2, "auto", [&](const Group& group) {
    const at::Device device(at::kCUDA, 0);
    const at::Tensor big = at::ones({4096, 4096}, device);
    std::vector<at::Tensor> sums;
    std::vector<Group::Work> works;
    for (int round = 0; round < 20; ++round) {
      at::Tensor product = big;
      for (int i = 0; i < 4; ++i) product = at::mm(product, big) / 4096;  // ones, after some time
      sums.push_back(product.flatten() * (round + group.rank()));
      works.push_back(group.all_reduce_async(sums.back()));
    }
    for (int round = 0; round < 20; ++round) {
      works[static_cast<std::size_t>(round)]->wait();
      const at::Tensor& sum = sums[static_cast<std::size_t>(round)];
      if (!sum.eq(2 * round + 1).all().item<bool>()) return 1;
    }
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

// The device copies such a result once more, after the copy from the host.
TEST(MixedGpu, AnAsynchronousOperationEndsWithItsResultInATensorThatIsNotContiguous) {
  if (cuda_devices() == 0) GTEST_SKIP() << kNoDevice;
  const auto codes = fork_ranks(2, "auto", [](const Group& group) {
    for (int round = 0; round < 20; ++round) {
      at::Tensor sum = at::ones({2048, 4096}, at::Device(at::kCUDA, 0)).t();
      group.all_reduce_async(sum)->wait();
      if (!sum.eq(2).all().item<bool>()) return 1;
    }
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

// It runs on a thread of weft, whose own stream does not wait for that of the caller.
TEST(MixedGpu, AnOperationBehindAPendingOneWaitsForTheStreamOfItsCaller) {
  if (cuda_devices() == 0) GTEST_SKIP() << kNoDevice;
  const auto codes = fork_ranks(2, "auto", [](const Group& group) {
    const at::Device device(at::kCUDA, 0);
    const c10::StreamGuard guard(
        c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
    const at::Tensor big = at::ones({4096, 4096}, device);
    for (int round = 0; round < 20; ++round) {
      at::Tensor pending = at::ones({1 << 22}, device);
      const Group::Work work = group.all_reduce_async(pending);
      at::Tensor product = big;
      for (int i = 0; i < 4; ++i) product = at::mm(product, big) / 4096;  // ones, after some time
      at::Tensor sum = product.flatten() * (round + group.rank());
      group.all_reduce(sum);
      if (!sum.eq(2 * round + 1).all().item<bool>()) return 1;
      work->wait();
    }
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

}  // namespace
}  // namespace weft::comm

// Synchronized batch normalization on a CUDA device against torch::nn::BatchNorm of the whole batch
// on the CPU. The suite has the label gpu and is skipped without a device. The ranks share it.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/types.h>

#include <vector>

#include "weft/comm/testing/cuda_devices.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/comm/testing/tensors.h"
#include "weft/parallel/batch_norm/sync_batch_norm.h"

namespace weft::parallel {
namespace batch_norm_cuda_test {

TEST(SyncBatchNormGpu, EqualsBatchNormOfTheWholeBatchOnTheCpu) {
  if (comm::cuda_devices() == 0)
    GTEST_SKIP() << "no CUDA device: libtorch was built without CUDA, or the machine has none";
  const auto codes = comm::fork_ranks(2, "auto", [](const Group& group) {
    const torch::nn::BatchNormOptions options(3);
    const at::Tensor joined = comm::wave({4, 3, 5, 2}, 0.4), factors = comm::wave({4, 3, 5, 2}, 2);
    torch::nn::BatchNorm2d layer(options);
    layer->to(at::kDouble);
    const at::Tensor x = joined.clone().requires_grad_();
    (layer->forward(x) * factors).sum().backward();

    const auto part = [&](const at::Tensor& whole) { return whole.narrow(0, 2 * group.rank(), 2); };
    SyncBatchNorm sync(options, group, SyncBatchNormImpl::Average::kSum);
    sync->to(at::kCUDA, at::kDouble);
    const at::Tensor mine = part(joined).to(at::kCUDA).requires_grad_();
    (sync->forward(mine) * part(factors).to(at::kCUDA)).sum().backward();

    const auto close = [](const at::Tensor& a, const at::Tensor& b) {
      return at::allclose(a.cpu(), b, 1e-10, 1e-10);
    };
    if (!close(mine.grad(), part(x.grad()))) return 1;
    if (!close(sync->running_var, layer->running_var)) return 2;
    at::Tensor weight = sync->weight.grad(), bias = sync->bias.grad();
    group.all_reduce(weight);
    group.all_reduce(bias);
    return close(weight, layer->weight.grad()) && close(bias, layer->bias.grad()) ? 0 : 3;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

}  // namespace batch_norm_cuda_test
}  // namespace weft::parallel

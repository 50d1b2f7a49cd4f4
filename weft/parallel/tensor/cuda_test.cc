// Attention on a CUDA device against the same layer on the CPU. The suite has the label gpu and is
// skipped without a device.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <vector>

#include "weft/comm/testing/cuda_devices.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/comm/testing/tensors.h"
#include "weft/parallel/tensor/attention.h"

namespace weft::parallel {
namespace tensor_cuda_test {

TEST(TensorAttentionGpu, EqualsTheCpuWithDocumentsAndDropout) {
  if (comm::cuda_devices() == 0)
    GTEST_SKIP() << "no CUDA device: libtorch was built without CUDA, or the machine has none";
  const auto codes = comm::fork_ranks(1, "auto", [](const Group&) {
    const at::Tensor input = comm::wave({2, 6, 8}, 0.4),
                     documents = torch::arange(12).view({2, 6}).div(4, "floor");
    for (const double dropout : {0.0, 0.3}) {
      std::vector<at::Tensor> results;
      for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kCUDA)}) {
        const TensorParallel tp;
        tp.seed_dropout(5);
        Attention layer(AttentionOptions{.width = 8, .heads = 2, .dropout = dropout}, tp);
        {
          const at::NoGradGuard no_grad;
          double phase = 0;
          for (at::Tensor& parameter : layer->parameters())
            parameter.copy_(comm::wave(parameter.sizes(), ++phase));
        }
        layer->to(device, at::kDouble);
        const at::Tensor x = input.to(device);
        results.push_back(layer->forward(x, documents).cpu());
        results.push_back(layer->forward(x).cpu());
      }
      for (std::size_t i = 0; i < 2; ++i) {
        if (!torch::allclose(results[i], results[2 + i], 1e-10, 1e-10)) return 1;
      }
    }
    return 0;
  });
  EXPECT_EQ(codes[0], 0);
}

}  // namespace tensor_cuda_test
}  // namespace weft::parallel

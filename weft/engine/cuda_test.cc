// Data parallelism of models on CUDA devices, against torch in one process on the CPU. The suites
// have the label gpu and are skipped without a device. One device is enough: ranks share it.
#include <gtest/gtest.h>
#include <torch/nn/functional.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>

#include "weft/checkpoint/slice.h"
#include "weft/comm/testing/cuda_devices.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/engine/data_parallel.h"

namespace weft::engine {
namespace cuda_test {

constexpr std::int64_t kBatch = 12;
constexpr int kSteps = 6;
const char* const kNoDevice =
    "no CUDA device: libtorch was built without CUDA, or the machine has none";

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(6, 40));
    last = register_module("last", torch::nn::Linear(40, 3));
    const torch::NoGradGuard guard;
    double phase = 0;
    for (auto& p : parameters())
      p.copy_(((torch::arange(p.numel()) * 0.7 + ++phase).sin() * 0.3).view(p.sizes()));
    counter = register_buffer("counter", torch::zeros({1}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::tanh(first(x))); }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::Tensor counter;
};
TORCH_MODULE(Net);

torch::Tensor inputs(int step) {
  return (torch::arange(kBatch * 6, torch::kFloat) * 0.37 + step).sin().view({kBatch, 6});
}
torch::Tensor targets(int step) { return (torch::arange(kBatch) + step).remainder(3); }

template <class Torch, class Options>
std::vector<torch::Tensor> by_torch(const Options& options) {
  Net net;
  Torch optim(net->parameters(), options);
  for (int step = 0; step < kSteps; ++step) {
    optim.zero_grad();
    torch::nn::functional::cross_entropy(net->forward(inputs(step)), targets(step)).backward();
    optim.step();
  }
  std::vector<torch::Tensor> weights;
  for (const auto& p : net->parameters()) weights.push_back(p.detach().clone());
  return weights;
}

// Values of another model's slices, by name.
struct Values final : checkpoint::SliceSource {
  std::map<std::string, at::Tensor> by_name;
  bool has(const std::string& name) const override { return by_name.count(name) > 0; }
  void check(const checkpoint::Slices&) const override {}
  void fill(const checkpoint::Slices& slices) const override {
    for (const auto& slice : slices)
      at::Tensor(slice.tensor).copy_(by_name.at(slice.name).view(slice.tensor.sizes()));
  }
};

// Trains on `device`, with weft's optimizer, or with torch's over averaged gradients.
// After half of the steps, a new model continues from the state of the first.
template <class Torch, class Options>
int train(const Group& group, const at::Device& device, const Options& options, bool by_weft) {
  // Here and not in the process of the test, whose threads of autograd a fork would lose.
  const std::vector<torch::Tensor> expected = by_torch<Torch>(options);
  const std::int64_t share = kBatch / group.size(), begin = share * group.rank();
  const auto step_on = [&](auto& model, int step) {
    const auto mine = [&](const torch::Tensor& all) {
      return all.slice(0, begin, begin + share).to(device);
    };
    torch::nn::functional::cross_entropy(model.forward(mine(inputs(step))), mine(targets(step)))
        .backward();
  };
  Net net;
  net->to(device);
  auto model = data_parallel(net, group);
  if (by_weft) {
    auto optim = model.template optimizer<Torch>(options);
    for (int step = 0; step < kSteps / 2; ++step) {
      step_on(model, step);
      optim.step();
      optim.zero_grad();
    }
    Values saved;
    if (group.size() == 1) {
      for (const auto& slice : model.shards()) saved.by_name[slice.name] = slice.tensor.cpu();
    }
    Net next;
    next->to(device);
    auto later = data_parallel(next, group);
    auto later_optim = later.template optimizer<Torch>(options);
    if (group.size() == 1) {
      later.load_shards(saved);
    } else {
      const torch::NoGradGuard guard;
      for (std::size_t i = 0; i < next->parameters().size(); ++i)
        next->parameters()[i].copy_(net->parameters()[i]);
      later_optim.load_state(optim.state());
    }
    for (int step = kSteps / 2; step < kSteps; ++step) {
      step_on(later, step);
      later_optim.step();
      later_optim.zero_grad();
    }
    net = next;
  } else {
    Torch optim(net->parameters(), options);
    for (int step = 0; step < kSteps; ++step) {
      optim.zero_grad();
      step_on(model, step);
      optim.step();
    }
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const torch::Tensor weight = net->parameters()[i].detach();
    if (weight.device().type() != device.type()) return 1;
    if (!torch::allclose(weight.cpu(), expected[i], 2e-5, 2e-5)) {
      std::fprintf(stderr, "tensor %zu differs by %g\n", i,
                   (weight.cpu() - expected[i]).abs().max().item<double>());
      return 2;
    }
    torch::Tensor of_rank_0 = weight.cpu().clone();
    group.broadcast(of_rank_0);
    if (by_weft && !torch::equal(of_rank_0, weight.cpu())) return 3;
  }
  return 0;
}

template <class Torch, class Options>
void compare(const std::string& devices, const Options& options, const std::string& what) {
  for (const bool by_weft : {true, false}) {
    if (!by_weft && devices.find('c') != std::string::npos) continue;  // weights would drift apart
    const auto codes =
        comm::fork_ranks(static_cast<int>(devices.size()), "auto", [&](const Group& group) {
          const bool gpu = devices[static_cast<std::size_t>(group.rank())] == 'g';
          const at::Device device = gpu ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
          return train<Torch>(group, device, options, by_weft);
        });
    EXPECT_EQ(codes, std::vector<int>(devices.size(), 0))
        << what << " on " << devices << (by_weft ? " by weft" : " by torch");
  }
}

// Ranks on the device (g) and on the CPU (c).
TEST(DataParallelGpu, TrainsAsTorchOnTheCpu) {
  if (comm::cuda_devices() == 0) GTEST_SKIP() << kNoDevice;
  for (const char* const devices : {"g", "gg", "gc", "cg", "gcc"}) {
    compare<torch::optim::AdamW>(devices, torch::optim::AdamWOptions(1e-2), "AdamW");
    compare<torch::optim::SGD>(devices, torch::optim::SGDOptions(0.1).momentum(0.9), "momentum");
  }
  compare<torch::optim::RMSprop>("gg", torch::optim::RMSpropOptions(1e-3), "RMSprop");
  compare<torch::optim::Adagrad>("gg", torch::optim::AdagradOptions(1e-2), "Adagrad");
}

// Ranks compare the values of their parameters after 16 updates.
TEST(DataParallelGpu, RanksOnUnlikeDevicesFindTheirEqualValuesEqual) {
  if (comm::cuda_devices() == 0) GTEST_SKIP() << kNoDevice;
  const auto codes = comm::fork_ranks(2, "auto", [](const Group& group) {
    const at::Device device(group.rank() == 0 ? at::kCUDA : at::kCPU);
    Net net;
    net->to(device);
    auto model = data_parallel(net, group);
    auto optim = model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 20; ++step) {
      torch::nn::functional::cross_entropy(model.forward(inputs(step).to(device)),
                                           targets(step).to(device))
          .backward();
      optim.step();
      optim.zero_grad();
    }
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

// The squares are beyond float32.
TEST(DataParallelGpu, ClipsGradientsWhoseNormIsBeyondTheRootOfFloat32) {
  if (comm::cuda_devices() == 0) GTEST_SKIP() << kNoDevice;
  const auto codes = comm::fork_ranks(1, "auto", [](const Group& group) {
    std::vector<double> norms;
    for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kCUDA, 0)}) {
      Net net;
      net->to(device);
      auto model = data_parallel(net, group);
      auto optim =
          model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1), {.max_grad_norm = 1});
      (model.forward(inputs(0).to(device)) * 1e22).sum().backward();
      optim.step();
      norms.push_back(optim.grad_norm());
      for (const auto& p : net->parameters()) {
        if (!p.isfinite().all().item<bool>()) return 1;
      }
    }
    if (!(norms[0] > 1e22)) return 2;
    return std::abs(norms[1] - norms[0]) <= 1e-4 * norms[0] ? 0 : 3;
  });
  EXPECT_EQ(codes, std::vector<int>(1, 0));
}

TEST(DataParallelGpu, RefusesWhatDevicesDoNotHave) {
  if (comm::cuda_devices() == 0) GTEST_SKIP() << kNoDevice;
  const auto codes = comm::fork_ranks(1, "auto", [](const Group& group) {
    const auto refuses = [&](DataParallelOptions how, bool whole) {
      try {
        Net net;
        if (whole) {
          net->to(at::kCUDA);
        } else {
          net->first->to(at::kCUDA);
        }
        static_cast<void>(data_parallel(net, group, std::move(how)));
      } catch (const Error& error) {
        return error.code() == Errc::kInvalidArgument;
      }
      return false;
    };
    return refuses({}, false) && refuses({.codec = "int8:64"}, true) &&
                   refuses({.weights = Weights::kShared}, true) &&
                   !refuses({.overlap_forward = true}, true)
               ? 0
               : 1;
  });
  EXPECT_EQ(codes, std::vector<int>(1, 0));
}

}  // namespace cuda_test
}  // namespace weft::engine

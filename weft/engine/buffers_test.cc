// Buffers of any kind are synchronized, saved and loaded, or are an error before the first step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"
#include "weft/checkpoint/reader.h"
#include "weft/checkpoint/sharded.h"
#include "weft/comm/replicate.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/engine/data_parallel.h"

namespace weft::engine {
namespace buffers_test {

using namespace std::chrono_literals;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(double value) {
    fc = register_module("fc", torch::nn::Linear(6, 3));
    register_buffer("expanded", torch::full({1, 3}, value).expand({4, 3}));
    register_buffer("complex", torch::polar(torch::full({4}, value), torch::arange(4.F)));
    register_buffer("conjugated", torch::polar(torch::ones({2}), torch::full({2}, value)).conj());
    register_buffer("transposed", torch::full({2, 3}, value).t());
    register_buffer("flags", torch::full({3}, value > 1, torch::kBool));
    register_buffer("words", torch::full({3}, value, torch::kInt).to(at::kUInt16));
    register_buffer("bytes", torch::full({3}, value).to(at::kFloat8_e4m3fn));
  }
  at::Tensor forward(const at::Tensor& x) { return fc(x); }
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Net);

at::Tensor numbers(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor.to(at::kFloat);
}

void expect_buffers(Net& net, double value) {
  const Net like(value);
  for (const auto& item : like->named_buffers()) {
    if (!at::equal(numbers(net->named_buffers()[item.key()]), numbers(item.value())))
      throw std::runtime_error("the buffer '" + item.key() + "' has other values");
  }
}

// Rank 0's buffers reach all ranks at the start and after each step. A checkpoint keeps them.
void use_buffers(const Group& group, const std::string& dir) {
  const auto sgd = torch::optim::SGDOptions(0.1);
  Net net(1 + group.rank());
  auto model = data_parallel(net, group);
  auto optimizer = model.optimizer<torch::optim::SGD>(sgd);
  expect_buffers(net, 1);
  for (const auto& item : Net(3 + group.rank())->named_buffers())
    net->named_buffers()[item.key()].copy_(item.value());
  model.forward(torch::ones({2, 6})).square().mean().backward();
  optimizer.step();
  expect_buffers(net, 3);
  checkpoint::save(dir, {.step = 1, .parts = {{"model", model.shards()}}, .state = {}}, group);
  Net again(7);
  auto loaded = data_parallel(again, group);
  auto other = loaded.optimizer<torch::optim::SGD>(sgd);
  loaded.load_shards(checkpoint::Reader(dir + "/step-00000001"));
  expect_buffers(again, 3);
}

TEST(Buffers, AModelWithoutAGroupSaysWhatABatchNormNeeds) {
  torch::nn::Sequential net(torch::nn::Linear(6, 3), torch::nn::BatchNorm1d(3));
  const auto model = data_parallel(net);
  const torch::NoGradGuard no_grad;
  expect_refused(
      [&] {
        model.forward(torch::ones({1, 6}));
      },
      Errc::kInvalidArgument, "convert_sync_batch_norm()");
}

TEST(Buffers, OfEveryTypeAreSynchronizedSavedAndLoaded) {
  const TempDir dir;
  comm::replicate(
      2, [&](const Group& group) { use_buffers(group, dir.path()); }, 20s);
  const TempDir other;
  const auto codes = comm::fork_ranks(2, "tcp", [&](const Group& group) {
    use_buffers(group, other.path());
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

// Each backward() ends with rank 0's running statistics on all ranks, although autograd has saved
// those of the rank for the next one.
void go_backward_twice(const Group& group) {
  torch::nn::Linear first(6, 4);
  torch::nn::BatchNorm1d norm(4);
  torch::nn::Sequential net(first, norm, torch::nn::Linear(4, 2));
  auto model = data_parallel(net, group);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  const at::Tensor x = torch::arange(24, torch::kFloat).view({4, 6}).sin() * (1 + group.rank());
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    const at::Tensor both = model.forward(x);
    both.select(1, 0).square().mean().backward({}, /*retain_graph=*/true);
    both.select(1, 1).square().mean().backward();
    const at::Tensor y = model.forward(x), z = model.forward(x + 1);
    y.square().mean().backward();
    z.square().mean().backward();
    optimizer.step();
  }
  for (const at::Tensor& mine : {norm->running_mean, norm->running_var}) {
    at::Tensor theirs = mine.clone();
    group.broadcast(theirs, 0);
    if (!at::equal(mine, theirs)) throw std::runtime_error("the statistics are not rank 0's");
  }
}

TEST(Buffers, ABatchNormGoesBackwardTwice) {
  comm::replicate(2, go_backward_twice, 20s);
  const auto codes = comm::fork_ranks(2, "tcp", [](const Group& group) {
    go_backward_twice(group);
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

// Has no memory for one buffer.
class WithoutMemory final : public checkpoint::SliceSource {
 public:
  WithoutMemory(const checkpoint::SliceSource& source, bool checks)
      : source_(source), checks_(checks) {}
  bool has(const std::string& name) const override { return source_.has(name); }
  void check(const checkpoint::Slices& slices) const override {
    if (checks_) look(slices);
    source_.check(slices);
  }
  void fill(const checkpoint::Slices& slices) const override {
    look(slices);
    source_.fill(slices);
  }

 private:
  static void look(const checkpoint::Slices& slices) {
    for (const checkpoint::Slice& slice : slices) {
      if (slice.name == "flags") throw std::bad_alloc();
    }
  }
  const checkpoint::SliceSource& source_;
  const bool checks_;
};

TEST(Buffers, ARankThatCannotLoadThemTellsTheOthersWhy) {
  const TempDir dir;
  comm::replicate(
      2,
      [&](const Group& group) {
        use_buffers(group, dir.path());
        Net net(7);
        auto model = data_parallel(net, group);
        auto optimizer = model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
        const checkpoint::Reader reader(dir / "step-00000001");
        for (const bool checks : {true, false}) {
          if (group.rank() == 1) {
            EXPECT_THROW(model.load_shards(WithoutMemory(reader, checks)), std::bad_alloc);
          } else {
            expect_refused([&] { model.load_shards(reader); }, Errc::kAborted,
                           "rank 1 cannot load its buffers: Unavailable: out of memory");
          }
        }
        model.load_shards(reader);
        expect_buffers(net, 3);
      },
      20s);
}

TEST(Buffers, ThatCannotBeSentAreAnErrorBeforeTheFirstStep) {
  const auto make = [](const at::Tensor& buffer) {
    return [buffer] {
      comm::replicate(
          2,
          [&](const Group& group) {
            torch::nn::Linear net(2, 2);
            net->register_buffer("odd", buffer);
            static_cast<void>(data_parallel(net, group));
          },
          20s);
    };
  };
  expect_refused(make(torch::ones({2, 2}).to_sparse()), Errc::kInvalidArgument,
                 "buffer 'odd' is sparse or quantized");
  expect_refused(make(torch::ones({4}).as_strided({3, 2}, {1, 1})), Errc::kInvalidArgument,
                 "buffer 'odd' has elements that share memory");
}

}  // namespace buffers_test
}  // namespace weft::engine

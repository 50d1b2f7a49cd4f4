// Gradients that share memory with other tensors: autograd makes a view of another tensor a
// gradient without a copy. Weights equal those of one process to 1e-10, in float64.
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include "weft/engine/data_parallel.h"
#include "weft/engine/internal/in_place.h"
#include "weft/engine/internal/ready_hook.h"
#include "weft/engine/testing/small_model.h"

namespace weft::engine {
namespace gradient_views_test {

using namespace std::chrono_literals;
using internal::fill;
using internal::Named;

const auto kSgd = torch::optim::SGDOptions(0.1);
constexpr int kSteps = 3;

Named weights_of(const torch::nn::Module& module) {
  Named all;
  internal::add_weights(all, "", module);
  return all;
}

// A learned table of positions above an embedding. At a batch of one, the gradient of the table is
// a view of that of the embedding's output, which backward reads later.
struct PositionsImpl : torch::nn::Module {
  static constexpr std::int64_t kRows = 128, kWidth = 512;
  PositionsImpl() {
    table = register_parameter("table", at::empty({kRows, kWidth}));
    words = register_module("words", torch::nn::Embedding(16, kWidth));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    last = register_module("last", torch::nn::Linear(kWidth, 3));
    to(at::kDouble);
    fill(*this);
  }
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor x = words(ids);  // first, so that its backward comes last
    return last(norm(x + table.unsqueeze(0)));
  }
  at::Tensor table;
  torch::nn::Embedding words{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear last{nullptr};
};
TORCH_MODULE(Positions);

at::Tensor ids_of(int step, std::int64_t rows) {
  constexpr std::int64_t kRows = PositionsImpl::kRows;
  return (at::arange(rows * kRows, at::kLong) * 7 + step).remainder(16).view({rows, kRows});
}

TEST(GradientViews, OfWhatBackwardStillReadsAreAveragedLikeInOneProcess) {
  Positions whole;
  torch::optim::SGD alone(whole->parameters(), kSgd);
  for (int step = 0; step < kSteps; ++step) {
    alone.zero_grad();
    whole(ids_of(step, 2)).square().mean().backward();
    alone.step();
  }
  replicate(
      2,
      [&](const Group& group) {
        auto model = data_parallel(Positions(), group);
        torch::optim::SGD optimizer(model->parameters(), kSgd);
        for (int step = 0; step < kSteps; ++step) {
          optimizer.zero_grad();
          model.forward(ids_of(step, 2).narrow(0, group.rank(), 1)).square().mean().backward();
          optimizer.step();
        }
        internal::expect_close(weights_of(*model), weights_of(*whole), 1e-10, "positions");
      },
      20s);
}

// The gradients of both parameters are views of one tensor.
struct PairImpl : torch::nn::Module {
  PairImpl() {
    first = register_parameter("first", at::empty({8, 32}, at::kDouble));
    second = register_parameter("second", at::empty({4, 64}, at::kDouble));
    fill(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    return ((first.view(-1) + second.view(-1)) * x).sum(1);
  }
  at::Tensor first, second;
};
TORCH_MODULE(Pair);

at::Tensor rows_of(int step, std::int64_t rows) {
  return (at::arange(rows * 256, at::kDouble) * 0.37 + step).sin().view({rows, 256});
}

// One process. With `apart`, gradients share no memory, which clip_grad_norm_() would scale twice.
Named pair_of_one_process(int rows, double clip, bool sum, bool apart = true) {
  Pair whole;
  torch::optim::SGD optimizer(whole->parameters(), kSgd);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor losses = whole(rows_of(step, rows)).square();
    (sum ? losses.sum() : losses.mean()).backward();
    for (at::Tensor& param : whole->parameters()) {
      if (apart) param.mutable_grad() = param.grad().clone();
    }
    if (clip > 0) torch::nn::utils::clip_grad_norm_(whole->parameters(), clip);
    optimizer.step();
  }
  return weights_of(*whole);
}

TEST(GradientViews, OfOneTensorAreReducedLikeInOneProcess) {
  struct Case {
    int ranks;
    Weights weights;
    double clip;
  };
  for (const Case& how : {Case{2, Weights::kShared, 0.05}, Case{2, Weights::kPrivate, 0.05},
                          Case{2, Weights::kShared, 0}, Case{3, Weights::kPrivate, 0}}) {
    const Named expected = pair_of_one_process(how.ranks, how.clip, false);
    replicate(
        how.ranks,
        [&](const Group& group) {
          auto model = data_parallel(Pair(), group, {.weights = how.weights});
          auto optimizer = model.optimizer<torch::optim::SGD>(kSgd, {.max_grad_norm = how.clip});
          for (int step = 0; step < kSteps; ++step) {
            optimizer.zero_grad();
            model.forward(rows_of(step, how.ranks).narrow(0, group.rank(), 1))
                .square()
                .mean()
                .backward();
            optimizer.step();
          }
          internal::expect_close(weights_of(*model), expected, 1e-10,
                                 std::string("weights ") + to_string(how.weights));
        },
        20s);
  }
}

TEST(GradientViews, OfOneTensorAreSummedForTorchsOwnOptimizers) {
  const Named expected = pair_of_one_process(2, 0, true);
  replicate(
      2,
      [&](const Group& group) {
        auto model = data_parallel(Pair(), group, {.average = DataParallelOptions::Average::kSum});
        torch::optim::SGD optimizer(model->parameters(), kSgd);
        for (int step = 0; step < kSteps; ++step) {
          optimizer.zero_grad();
          model.forward(rows_of(step, 2).narrow(0, group.rank(), 1)).square().sum().backward();
          optimizer.step();
        }
        internal::expect_close(weights_of(*model), expected, 1e-10, "sums");
      },
      20s);
}

// It scales shared memory twice, as in one process.
TEST(GradientViews, OfOneTensorAreClippedByTorchAsInOneProcess) {
  const Named expected = pair_of_one_process(2, 0.05, false, /*apart=*/false);
  replicate(
      2,
      [&](const Group& group) {
        auto model = data_parallel(Pair(), group);
        torch::optim::SGD optimizer(model->parameters(), kSgd);
        for (int step = 0; step < kSteps; ++step) {
          optimizer.zero_grad();
          model.forward(rows_of(step, 2).narrow(0, group.rank(), 1)).square().mean().backward();
          torch::nn::utils::clip_grad_norm_(model->parameters(), 0.05);
          optimizer.step();
        }
        internal::expect_close(weights_of(*model), expected, 1e-10, "clipped");
      },
      20s);
}

// The second backward adds to the gradients of the first, which no other tensor uses any more.
TEST(GradientViews, AreTheOnlyGradientsThatAreCopiedForThePeers) {
  replicate(
      2,
      [](const Group& group) {
        Positions net;
        std::vector<at::Tensor> params;
        std::vector<std::string> names, copied;
        for (const auto& item : net->named_parameters()) {
          names.push_back(item.key());
          params.push_back(item.value());
        }
        const internal::Ledger::Sizes sizes{.params = static_cast<int>(params.size()), .units = 1};
        internal::Ledger ledger(*group.host(), sizes, 20s);
        internal::ShownGradients shown(ledger, params, nullptr);
        for (std::size_t i = 0; i < params.size(); ++i) {
          add_ready_hook(params[i], [&, i] {
            const int param = static_cast<int>(i);
            shown.show(param);
            if (shown.of(param).data_ptr() != params[i].grad().data_ptr())
              copied.push_back(names[i]);
          });
        }
        for (int pass = 0; pass < 2; ++pass) {
          net(ids_of(pass, 1)).square().mean().backward();
          EXPECT_EQ(copied,
                    pass == 0 ? std::vector<std::string>{"table"} : std::vector<std::string>{});
          copied.clear();
          shown.end(false, std::vector<bool>(params.size(), true));
        }
      },
      20s);
}

}  // namespace gradient_views_test
}  // namespace weft::engine

// lstm_reference.py prints the known answers: PyTorch's results for the same net of plain modules,
// filled by the same formula. Both compute in float64.
#include "weft/models/lstm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <map>
#include <vector>

#include "weft/base/testing/refusal.h"
#include "weft/comm/replicate.h"
#include "weft/parallel/compose/autocast.h"
#include "weft/parallel/compose/parallelize.h"

namespace weft::models {
namespace lstm_test {

using testing::HasSubstr;

constexpr double kTolerance = 1e-7;  // The known values have nine digits.

void fill(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  module.to(torch::kDouble);
  std::map<std::string, at::Tensor> by_name;
  for (const auto& pair : module.named_parameters()) by_name[pair.key()] = pair.value();
  int phase = 0;
  for (auto& [name, p] : by_name) {
    const at::Tensor k = torch::arange(p.numel(), torch::kDouble);
    p.copy_(torch::sin(k.square() * 0.7 + k * 0.01 + phase++).reshape(p.sizes()));
  }
}

struct Stretch {
  std::vector<double> last_logits;  // Logits of the first row's last token.
  double loss;
};

void expect_known(bool tied, const std::vector<Stretch>& known, double gradient_norm) {
  Lstm net(LstmOptions{.vocabulary = 11, .width = 6, .hidden = 6, .layers = 2, .tied = tied});
  fill(*net);
  const at::Tensor tokens = (torch::arange(18).view({2, 9}) * 7).remainder(11);
  LstmState state;
  for (std::int64_t i = 0; i < 2; ++i) {
    const Stretch& want = known[static_cast<std::size_t>(i)];
    const at::Tensor out = net->forward(tokens.narrow(1, 4 * i, 4), &state);
    const at::Tensor loss =
        torch::cross_entropy_loss(out.flatten(0, 1), tokens.narrow(1, 4 * i + 1, 4).flatten());
    loss.backward();
    EXPECT_TRUE(torch::allclose(out[0][3], torch::tensor(want.last_logits, torch::kDouble),
                                kTolerance, kTolerance));
    EXPECT_NEAR(loss.item<double>(), want.loss, kTolerance);
  }
  double squares = 0;
  for (const at::Tensor& p : net->parameters()) squares += p.grad().square().sum().item<double>();
  EXPECT_NEAR(std::sqrt(squares), gradient_norm, kTolerance);
}

TEST(Lstm, ComputesAndDifferentiatesAsInPyTorchAndCarriesItsState) {
  expect_known(false,
               {{{-0.231367538, 0.299222399, -0.192829767, 0.270703563, -0.734423927, -1.85183851,
                  0.382108155, 0.268476134, 1.75043815, 0.0809254019, 1.03694783},
                 2.63753117},
                {{-0.263064054, 0.162608679, -0.241634233, 0.226486027, -0.796789435, -1.83162928,
                  0.416685471, 0.384824298, 1.73848483, 0.0403953313, 0.994433566},
                 2.97754455}},
               0.997075829);
}

TEST(Lstm, ComputesIn16BitsOnEveryProcessor) {
  Lstm net(LstmOptions{.vocabulary = 11, .width = 16, .hidden = 16, .layers = 2});
  const at::Tensor tokens = (torch::arange(18).view({2, 9}) * 7).remainder(11);
  const auto loss_with_a_state = [&] {
    LstmState state;
    net->forward(tokens.narrow(1, 0, 8), &state);
    const at::Tensor out = net->forward(tokens.narrow(1, 0, 8), &state);
    return torch::cross_entropy_loss(out.flatten(0, 1).to(at::kFloat),
                                     tokens.narrow(1, 1, 8).flatten());
  };
  const double whole = loss_with_a_state().item<double>();
  const auto expect_alike = [&](const char* how) {
    const at::Tensor half = loss_with_a_state();
    EXPECT_NEAR(half.item<double>(), whole, 0.01) << how;
    net->zero_grad();
    half.backward();
    for (const at::Tensor& p : net->parameters())
      EXPECT_TRUE(p.grad().isfinite().all().item<bool>() && p.grad().any().item<bool>()) << how;
  };
  {
    const parallel::Autocast autocast(parallel::Precision::kBf16);
    expect_alike("autocast");
  }
  net->to(at::kBFloat16);
  expect_alike("weights");
}

TEST(Lstm, SharesTheEncodersWeightIfTied) {
  expect_known(true,
               {{{-0.154007085, 1.17447714, -0.158098198, -0.314933447, -1.004419, -0.404039873,
                  0.300409526, -0.0581881533, 0.255099605, -0.017413584, 0.634975432},
                 2.65566204},
                {{-0.240651311, 0.99626246, -0.0318403917, -0.241442003, -1.10362294, -0.569321738,
                  0.335733206, 0.103799678, 0.420846467, 0.00469507024, 0.612095919},
                 2.41607019}},
               0.602618736);
}

TEST(Lstm, HasPyTorchsNamesAndTheNumberOfParametersOfItsSizes) {
  const auto count = [](const LstmOptions& options) {
    std::int64_t elements = 0;
    for (const auto& p : Lstm(options)->named_parameters()) elements += p.value().numel();
    return elements;
  };
  const std::int64_t v = 100, h = 65;
  EXPECT_EQ(count({.vocabulary = v, .width = h, .hidden = h, .layers = 2}),
            v * h + 2 * (8 * h * h + 8 * h) + v * h + v);
  EXPECT_EQ(count({.vocabulary = v, .width = h, .hidden = h, .layers = 2, .tied = true}),
            v * h + 2 * (8 * h * h + 8 * h) + v);
  const auto names =
      Lstm(LstmOptions{.vocabulary = v, .width = h, .hidden = h})->named_parameters();
  for (const char* name :
       {"encoder.weight", "rnn.weight_ih_l0", "rnn.bias_hh_l1", "decoder.weight", "decoder.bias"}) {
    EXPECT_NE(names.find(name), nullptr) << name;
  }
}

// Zaremba's paper states 20 million for its medium net. Ours also has PyTorch's two biases per
// layer.
TEST(LstmSlow, HasTheNumberOfParametersOfZarembasMediumNet) {
  std::int64_t elements = 0;
  for (const at::Tensor& p : Lstm(LstmOptions{.width = 650, .hidden = 650})->parameters())
    elements += p.numel();
  EXPECT_EQ(elements, 19'780'400);
}

TEST(Lstm, StartsFromZerosOrFromAGivenState) {
  torch::manual_seed(1);
  Lstm net(LstmOptions{.vocabulary = 11, .width = 5, .hidden = 7});
  const at::Tensor tokens = torch::arange(12).view({2, 6}).remainder(11);
  const at::Tensor whole = net->forward(tokens);
  LstmState state;
  const at::Tensor first = net->forward(tokens.narrow(1, 0, 3), &state),
                   then = net->forward(tokens.narrow(1, 3, 3), &state);
  EXPECT_TRUE(torch::allclose(torch::cat({first, then}, 1), whole, 1e-5, 1e-6));
  EXPECT_FALSE(state.hidden.requires_grad());
  EXPECT_EQ(state.cell.sizes(), (std::vector<std::int64_t>{2, 2, 7}));
  EXPECT_FALSE(torch::allclose(net->forward(tokens.narrow(1, 3, 3)), then, 1e-5, 1e-6));
}

TEST(Lstm, AppliesDropoutInTrainingOnlyAndCanBeCloned) {
  torch::manual_seed(1);
  Lstm net(LstmOptions{.vocabulary = 11, .width = 8, .hidden = 8, .dropout = 0.5, .tied = true});
  const at::Tensor tokens = torch::arange(12).view({2, 6}).remainder(11);
  EXPECT_FALSE(torch::equal(net->forward(tokens), net->forward(tokens)));
  net->eval();
  const at::Tensor want = net->forward(tokens);
  EXPECT_TRUE(torch::equal(net->forward(tokens), want));
  const auto copy = std::dynamic_pointer_cast<LstmImpl>(net->clone());
  copy->eval();
  EXPECT_TRUE(torch::equal(copy->forward(tokens), want));
  EXPECT_NE(copy->encoder->weight.data_ptr(), net->encoder->weight.data_ptr());
}

// The LSTM gets the weights that the blocks drew.
TEST(Lstm, EqualsItsBlocksOverEveryPlan) {
  constexpr int kSteps = 3;
  const at::Tensor tokens = (torch::arange(28).view({4, 7}) * 5).remainder(11);
  for (const bool tied : {true, false}) {
    const LstmOptions options{.vocabulary = 11, .width = 6, .hidden = 6, .layers = 2, .tied = tied};
    std::map<std::string, at::Tensor> wanted;
    std::vector<double> losses;
    const auto compose = [&](int world, const std::vector<parallel::Axis>& axes,
                             const parallel::Plan& plan) {
      comm::replicate(world, [&](const Group& group) {
        const parallel::Mesh mesh(group, axes);
        parallel::Plan asked = plan;
        asked.optimizer = engine::optimizer_spec(torch::optim::SGDOptions(0.5), {});
        asked.seed = 3;
        auto model = parallel::parallelize(lstm_blocks(options), asked, mesh);
        const auto first = model.state();
        if (world == 1) {
          Lstm one(options);
          const at::NoGradGuard no_grad;
          const auto parameters = one->named_parameters();
          for (const auto& [name, tensor] : first) {
            if (const at::Tensor* const mine = parameters.find(name)) mine->copy_(tensor);
          }
          const at::AutoGradMode with_gradients(true);
          torch::optim::SGD optimizer(one->parameters(), torch::optim::SGDOptions(0.5));
          for (int step = 0; step < kSteps; ++step) {
            optimizer.zero_grad();
            const at::Tensor y = one->forward(tokens.narrow(1, 0, 6));
            const at::Tensor loss =
                torch::cross_entropy_loss(y.flatten(0, 1), tokens.narrow(1, 1, 6).flatten());
            loss.backward();
            optimizer.step();
            losses.push_back(loss.item<double>());
          }
          for (const auto& item : one->named_parameters())
            wanted[item.key()] = item.value().detach();
        }
        const int replicas = mesh.size("dp") * mesh.size("fsdp");
        const int replica = mesh.coordinate("dp") * mesh.size("fsdp") + mesh.coordinate("fsdp");
        const at::Tensor mine = tokens.chunk(replicas)[static_cast<std::size_t>(replica)];
        for (int step = 0; step < kSteps; ++step) {
          model.zero_grad();
          EXPECT_NEAR(model.train_step({mine.narrow(1, 0, 6)}, {mine.narrow(1, 1, 6)}),
                      losses[static_cast<std::size_t>(step)], 1e-5);
          model.step();
        }
        const auto state = model.state();
        if (group.rank() > 0) return;
        std::size_t found = 0;
        for (const auto& [name, tensor] : state) {
          if (!wanted.contains(name)) continue;
          ++found;
          EXPECT_TRUE(torch::allclose(tensor, wanted.at(name), 1e-4, 1e-5))
              << name << ", world " << world;
        }
        EXPECT_EQ(found, wanted.size());
      });
    };
    compose(1, {}, {});
    compose(2, {{"pp", 2}}, {.micro_batches = 2});
    compose(2, {{"fsdp", 2}}, {.weights = engine::Weights::kPrivate});
    compose(4, {{"pp", 2}, {"dp", 2}},
            {.micro_batches = 2, .recompute = parallel::Recompute::kFull});
  }
}

TEST(Lstm, RefusesInvalidOptions) {
  EXPECT_THAT(refusal([] { Lstm(LstmOptions{.layers = 0}); }), HasSubstr("at least 1"));
  EXPECT_THAT(refusal([] { lstm_blocks(LstmOptions{.layers = 0}); }), HasSubstr("at least 1"));
  EXPECT_THAT(refusal([] { Lstm(LstmOptions{.dropout = 1}); }), HasSubstr("[0, 1)"));
  EXPECT_THAT(refusal([] { Lstm(LstmOptions{.width = 8, .hidden = 9, .tied = true}); }),
              HasSubstr("a width of 9"));
  Lstm net(LstmOptions{.vocabulary = 11, .width = 4, .hidden = 4});
  EXPECT_THAT(refusal([&] { net->forward(torch::zeros({3}, torch::kLong)); }),
              HasSubstr("[batch, sequence]"));
  LstmState state;
  net->forward(torch::zeros({2, 3}, torch::kLong), &state);
  EXPECT_THAT(refusal([&] {
                net->forward(torch::zeros({3, 3}, torch::kLong), &state);
              }),
              HasSubstr("batch of 3"));
}

}  // namespace lstm_test
}  // namespace weft::models

// Compares routers and layers of experts with PyTorch's numbers (reference.py, float64, 1e-10
// relative). Also tests the arguments that they reject.
#include "weft/parallel/experts/mixture.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "weft/base/testing/refusal.h"
#include "weft/parallel/experts/dispatch.h"
#include "weft/parallel/experts/testing/parity.h"

namespace weft::parallel {
namespace {

using internal::expect_close;
using internal::kSeed;
using internal::wave;
using testing::HasSubstr;

struct Known {
  const char* name;
  std::int64_t experts, top_k;
  bool over_all, gated;
  double factor;
  std::vector<std::int64_t> wanted, dropped;
  std::vector<double> sums, first;
};

const std::vector<Known>& known() {
  static const std::vector<Known> all{
#include "weft/parallel/experts/reference.inc"
  };
  return all;
}

MixtureOptions options_of(const Known& k) {
  MixtureOptions o{.hidden = 6, .balance = 0.5, .z = 0.25};
  o.router = {.width = 4, .experts = k.experts, .top_k = k.top_k};
  o.router.weights = k.over_all ? RouterWeights::kOverAll : RouterWeights::kOverChosen;
  o.router.capacity_factor = k.factor;
  o.activation = k.gated ? ExpertActivation::kSwiglu : ExpertActivation::kGelu;
  return o;
}

// Sets the weights of reference.py; each rank has its own experts.
MixtureOfExperts layer_of(const Known& k, const ExpertParallel& ep, const TensorParallel& tp = {}) {
  MixtureOfExperts layer(options_of(k), ep, tp);
  layer->to(at::kDouble);
  const at::NoGradGuard no_grad;
  const std::int64_t part = k.experts / ep.size();
  const auto lie = layer->slices();
  const auto set = [&](const char* name, const at::Tensor& mine, at::IntArrayRef sizes,
                       double phase) {
    if (mine.defined())
      mine.copy_(slice_of(wave(sizes, phase), lie.at(name), tp).narrow(0, ep.rank() * part, part));
  };
  layer->router->weight.copy_(2 * wave({k.experts, 4}, 1.1));
  set("gate_proj", layer->gate_proj, {k.experts, 6, 4}, 0.5);
  set("up_proj", layer->up_proj, {k.experts, 6, 4}, 0.9);
  set("down_proj", layer->down_proj, {k.experts, 4, 6}, 1.7);
  return layer;
}

double dot(const at::Tensor& x, double phase) {
  return (x * wave(x.sizes(), phase)).sum().item<double>();
}

void expect_known(const Known& k, const ExpertParallel& ep, const TensorParallel& tp) {
  SCOPED_TRACE(k.name);
  MixtureOfExperts layer = layer_of(k, ep, tp);
  const at::Tensor x = wave({2, 5, 4}, 0.3).requires_grad_(), y = layer->forward(x);
  ((y * wave({2, 5, 4}, 2.3)).sum() + layer->auxiliary()).backward();
  EXPECT_EQ(layer->load().wanted, k.wanted);
  EXPECT_EQ(layer->load().dropped, k.dropped);
  const auto lie = layer->slices();
  const std::vector<double> sums{
      layer->auxiliary().item<double>(),
      dot(y.detach(), 0.6),
      dot(x.grad(), 0.1),
      dot(layer->router->weight.grad(), 0.1),
      dot(whole_of(layer->up_proj.grad(), lie.at("up_proj"), tp), 0.1),
      dot(whole_of(layer->down_proj.grad(), lie.at("down_proj"), tp), 0.1),
  };
  for (std::size_t i = 0; i < sums.size(); ++i)
    EXPECT_NEAR(sums[i], k.sums[i], 1e-10 * std::abs(k.sums[i])) << "number " << i;
  expect_close(y[0][0].detach(), torch::tensor(k.first, at::kDouble), "the first token's result");
}

TEST(MixtureOfExperts, EqualsPyTorchForEveryKindOfRouting) {
  ASSERT_EQ(known().size(), 5u);
  for (const Known& k : known()) expect_known(k, {}, {});
}

TEST(MixtureOfExperts, EqualsPyTorchIfEachExpertIsSplitOverRanks) {
  for (const int ranks : {2, 3}) {
    replicate(ranks, [](Group group) {
      const TensorParallel tp(std::move(group), kSeed);
      for (const Known& k : known()) expect_known(k, {}, tp);
    });
  }
}

TEST(Router, PrefersTheLowerIndexOfEqualExperts) {
  const at::Tensor logits = torch::tensor(
      {{1.0, 3.0, 3.0, 3.0}, {0.0, 0.0, 0.0, 0.0}, {2.0, 1.0, 2.0, 5.0}}, at::kDouble);
  const Routing r = route(logits, {.width = 1, .experts = 4, .top_k = 2});
  EXPECT_TRUE(torch::equal(r.experts, torch::tensor({{1, 2}, {0, 1}, {3, 0}})));
  expect_close(r.weights.narrow(0, 0, 2), torch::full({2, 2}, 0.5, at::kDouble), "equal weights");
}

// Two sequences of three tokens. All tokens choose expert 0 first and expert 1 second; none chooses
// experts 2 and 3.
TEST(Router, DropsLaterTokensAndLaterChoicesPerSequence) {
  at::Tensor logits = torch::zeros({2, 3, 4});
  logits.select(2, 0).fill_(2);
  logits.select(2, 1).fill_(1);
  const auto kept = [&](double factor) {
    const Routing r =
        route(logits, {.width = 1, .experts = 4, .top_k = 2, .capacity_factor = factor});
    return r.kept.all(1).view({2, 3}).sum(1);
  };
  EXPECT_TRUE(torch::equal(kept(1), torch::tensor({2, 2}))) << "ceil(2 · 3 / 4) = 2 of an expert";
  EXPECT_TRUE(torch::equal(kept(0.1), torch::tensor({1, 1}))) << "at least one";
  EXPECT_TRUE(torch::equal(kept(100), torch::tensor({3, 3})));
  // The second choice of the first token and the first choice of the second token are both expert
  // 0, which has room for one. The first choice wins.
  const at::Tensor two = torch::tensor({{1.0f, 2.0f}, {2.0f, 1.0f}});
  const Routing r = route(two, {.width = 1, .experts = 2, .top_k = 2, .capacity_factor = 0.5});
  EXPECT_TRUE(torch::equal(r.kept, torch::tensor({{true, false}, {true, false}})));
}

TEST(Router, JittersItsInputInTrainingOnly) {
  RouterOptions o{.width = 4, .experts = 4, .top_k = 2, .jitter = 0.2};
  const TensorParallel tp;
  tp.seed_dropout(5);
  Router router(o, tp);
  const at::Tensor x = wave({8, 4}, 0.2, at::kFloat);
  const at::Tensor first = router->forward(x).probabilities,
                   second = router->forward(x).probabilities;
  EXPECT_FALSE(torch::equal(first, second));
  tp.set_draw(0);
  EXPECT_TRUE(torch::equal(router->forward(x).probabilities, first)) << "repeated";
  router->eval();
  const at::Tensor plain = router->forward(x).probabilities;
  EXPECT_TRUE(torch::equal(plain, torch::linear(x, router->weight).softmax(-1)));
  // |d log p| is at most 2 · 0.2 · max over experts of sum |x w|.
  const double most = 0.4 * torch::linear(x.abs(), router->weight.abs()).max().item<double>();
  EXPECT_LE((first.log() - plain.log()).abs().max().item<double>(), most);
}

TEST(Router, ComputesInFloat32UnderAutocast) {
  Router router(RouterOptions{.width = 4, .experts = 4}, TensorParallel());
  const at::Tensor x = wave({8, 4}, 0.2, at::kFloat), plain = router->forward(x).probabilities;
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor cast = router->forward(x).probabilities,
                   lower = torch::linear(x, router->weight);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(lower.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(torch::equal(cast, plain));
}

TEST(Router, RejectsInvalidOptions) {
  const auto why = [](const RouterOptions& o) {
    return refusal([&] { Router(o, TensorParallel()); });
  };
  EXPECT_THAT(why({.width = 4, .experts = 4, .top_k = 5}),
              HasSubstr("top_k = 5 of 4 experts; use 1 to 4"));
  EXPECT_THAT(why({.width = 4, .experts = 4, .top_k = 1}),
              HasSubstr("with top_k = 1 use RouterWeights::kOverAll"));
  EXPECT_THAT(why({.width = 4, .experts = 4, .capacity_factor = -1}),
              HasSubstr("capacity_factor must be at least 0"));
  EXPECT_THAT(why({.width = 4, .experts = 4, .jitter = 1}), HasSubstr("jitter must be in [0, 1)"));
  EXPECT_THAT(refusal([] {
                route(torch::zeros({3, 5}), {.width = 1, .experts = 4});
              }),
              HasSubstr("logits must be [..., tokens, 4]"));
}

// Sequences of every length over 2 to 4 ranks, so that some ranks have no position.
TEST(Router, KeepsTheSameChoicesOverRanksAsOneProcess) {
  const RouterOptions o{.width = 1, .experts = 4, .top_k = 2, .capacity_factor = 0.7};
  torch::manual_seed(3);
  for (const std::int64_t tokens : {1, 3, 8, 13}) {
    const at::Tensor logits = torch::randn({2, 3, tokens, 4});
    const at::Tensor one = route(logits, o).kept.view({6, tokens, 2});
    for (const int world : {2, 3, 4}) {
      replicate(world, [&](const Group& group) {
        const ContextParallel cp(group);
        const at::Tensor kept = route(cp.part(logits, -2), o, cp).kept;
        EXPECT_TRUE(at::equal(kept, cp.part(one, 1).reshape({-1, 2})))
            << tokens << " tokens over " << world;
        EXPECT_EQ(route(logits.narrow(0, 0, 0), o, cp).kept.numel(), 0) << "no sequence";
      });
    }
  }
}

TEST(MixtureOfExperts, RejectsExpertsThatDoNotDivideAndNamesTheNearest) {
  replicate(4, [](Group group) {
    const ExpertParallel ep(std::move(group));
    MixtureOptions o{.router = {.width = 4, .experts = 6}, .hidden = 8};
    EXPECT_THAT(
        refusal([&] { MixtureOfExperts(o, ep); }),
        HasSubstr("experts: 6 does not divide by 4 ranks; the nearest that do are 4 and 8"));
    o.router.experts = 2;
    EXPECT_THAT(refusal([&] { MixtureOfExperts(o, ep); }), HasSubstr("the nearest that does is 4"));
  });
  const MixtureOptions o{.router = {.width = 4, .experts = 4}, .hidden = 8};
  MixtureOfExperts layer(o, ExpertParallel());
  EXPECT_THAT(refusal([&] {
                layer->forward(torch::zeros({2, 5}));
              }),
              HasSubstr("x must be [..., tokens, 4]"));
  EXPECT_THAT(refusal([&] {
                exchange_rows(torch::zeros({3, 1}), {2}, {2}, {});
              }),
              HasSubstr("send must sum to the 3 rows"));
  EXPECT_THAT(refusal([&] { ExpertParallel().group(); }), HasSubstr("without a group"));
}

// S = sum over ranks of c_r · d(sum y³)/dx_r with y = x exchanged: dS/dx = 6 x · c, c brought
// along.
TEST(ExchangeRows, IsItsOwnGradientAndHasGradientsOfGradients) {
  replicate(2, [](Group group) {
    const int rank = group.rank();
    const ExpertParallel ep(std::move(group));
    // Rank 0 sends 1 row to itself and 3 to rank 1; rank 1 sends none to rank 0 and 2 to itself.
    const std::vector<std::int64_t> send =
        rank == 0 ? std::vector<std::int64_t>{1, 3} : std::vector<std::int64_t>{0, 2};
    const std::vector<std::int64_t> receive =
        rank == 0 ? std::vector<std::int64_t>{1, 0} : std::vector<std::int64_t>{3, 2};
    const at::Tensor x0 = wave({4, 3}, 0.1), x1 = wave({2, 3}, 0.9),
                     x = (rank == 0 ? x0 : x1).clone().requires_grad_();
    const at::Tensor y = exchange_rows(x, send, receive, ep);
    expect_close(y.detach(), rank == 0 ? x0.narrow(0, 0, 1) : torch::cat({x0.narrow(0, 1, 3), x1}),
                 "rows");
    const at::Tensor first =
        torch::autograd::grad({y.pow(3).sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    expect_close(first.detach(), 3 * x.detach().square(), "gradient");
    const at::Tensor c = wave(x.sizes(), 2);
    (first * c).sum().backward();
    expect_close(x.grad(), 6 * x.detach() * c, "second derivative");
  });
}

}  // namespace
}  // namespace weft::parallel

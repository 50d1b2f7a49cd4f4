// A net with a layer of experts, trained over ranks with shares of any size, equals one process on
// the whole batch: losses, gradients and weights of five steps to 1e-10 of the largest in float64
// and 1e-5 in float32. Also tests bytes and the loss of a rank.
#include <torch/optim/sgd.h>

#include <chrono>
#include <csignal>
#include <numeric>

#include "weft/base/testing/in_time.h"
#include "weft/comm/testing/counted_calls.h"
#include "weft/comm/testing/failures.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/parallel/experts/testing/parity.h"
#include "weft/parallel/tensor/linear.h"

namespace weft::parallel {
namespace {

namespace nn = torch::nn;
using internal::expect_close;
using internal::kSeed;
using internal::wave;
using internal::whole_of_experts;
using testing::HasSubstr;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kWidth = 6, kHidden = 8, kTokens = 5;  // tokens of a sequence

MixtureOptions options_of(std::int64_t top_k, double factor) {
  MixtureOptions o{.hidden = kHidden, .balance = 0.3, .z = 0.1, .normal = 0.5, .normal_out = 0.5};
  o.router = {
      .width = kWidth, .experts = 4, .top_k = top_k, .capacity_factor = factor, .normal = 1};
  if (top_k == 1) o.router.weights = RouterWeights::kOverAll;
  return o;
}

// Layers on every rank, around the layer of experts.
struct Net : nn::Module {
  Net(const MixtureOptions& options, const ExpertParallel& ep, const TensorParallel& tp) {
    in = register_module("in", Linear(LinearOptions{.in = kWidth, .out = kWidth}, tp));
    experts = register_module("experts", MixtureOfExperts(options, ep, tp));
    out = register_module("out", Linear(LinearOptions{.in = kWidth, .out = kWidth}, tp));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = in->forward(x);
    return out->forward(h + experts->forward(h));
  }
  Linear in{nullptr}, out{nullptr};
  MixtureOfExperts experts{nullptr};
};

// A rank's groups, and its sequences of a batch.
struct Place {
  ExpertParallel ep;
  TensorParallel tp;
  std::optional<Group> batch, replicas;  // all that share a batch; those with the same experts
  std::int64_t first = 0, count = 0;
};

struct Case {
  std::int64_t top_k = 2;
  double factor = 0;
  at::ScalarType type = at::kDouble;
};

struct Trained {
  std::vector<double> losses, dropped;
  std::map<std::string, at::Tensor> gradients, weights;  // whole; gradients of the first step
  double norm = 0;                                       // of the first gradient
};

std::map<std::string, at::Tensor> whole(const Net& net, const Place& place, bool gradients) {
  std::map<std::string, at::Tensor> all;
  const auto split = slices(net), experts = expert_slices(net);
  for (const auto& p : net.named_parameters()) {
    at::Tensor mine = (gradients ? p.value().grad() : p.value()).detach();
    if (split.contains(p.key())) mine = whole_of(mine, split.at(p.key()), place.tp);
    all[p.key()] = (experts.contains(p.key()) ? whole_of_experts(mine, place.ep) : mine).clone();
  }
  return all;
}

constexpr std::int64_t kBatch = 7;

Trained train(const Case& c, const Place& place) {
  Net net(options_of(c.top_k, c.factor), place.ep, place.tp);
  net.to(c.type);
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.3).momentum(0.5));
  const double share = static_cast<double>(place.count) / kBatch;
  Trained out;
  for (int step = 0; step < 5; ++step) {
    const at::Tensor x =
        wave({kBatch, kTokens, kWidth}, 0.3 + step, c.type).narrow(0, place.first, place.count);
    const at::Tensor target =
        wave({kBatch, kTokens, kWidth}, 1.9 + step, c.type).narrow(0, place.first, place.count);
    optimizer.zero_grad();
    const at::Tensor y = net.forward(x), mean = (y - target).square().sum() /
                                                static_cast<double>(kBatch * kTokens * kWidth);
    at::Tensor loss = mean + net.experts->auxiliary() * share;  // L_r · n_r / N
    loss.backward();
    at::Tensor all = loss.detach().clone();
    if (place.batch) {
      place.batch->all_reduce(all);
      sum_gradients(net, *place.batch, *place.replicas);
    }
    out.losses.push_back(all.item<double>());
    out.dropped.push_back(net.experts->load().dropped_share());
    EXPECT_EQ(net.experts->load().tokens, kBatch * kTokens);
    if (step == 0) {
      out.gradients = whole(net, place, true);
      out.norm = clip_grad_norm(net, 1e9, place.ep, place.tp);
    }
    optimizer.step();
  }
  out.weights = whole(net, place, false);
  return out;
}

Trained alone(const Case& c) {
  torch::manual_seed(kSeed);
  return train(c, {.count = kBatch});
}

void expect_same(const Trained& got, const Trained& want, at::ScalarType type) {
  const double most = type == at::kDouble ? 1e-10 : 1e-5;
  for (std::size_t i = 0; i < 5; ++i)
    EXPECT_NEAR(got.losses[i], want.losses[i], most * want.losses[i]) << "step " << i;
  EXPECT_EQ(got.dropped, want.dropped);
  EXPECT_NEAR(got.norm, want.norm, most * want.norm);
  ASSERT_EQ(got.weights.size(), want.weights.size());
  for (const auto& [name, gradient] : want.gradients)
    expect_close(got.gradients.at(name), gradient, "gradient of " + name);
  for (const auto& [name, weight] : want.weights) expect_close(got.weights.at(name), weight, name);
}

// Ranks of ep, each with the given number of sequences.
void compare(const Case& c, const std::vector<std::int64_t>& shares) {
  const Trained one = alone(c);
  EXPECT_NE(one.losses.front(), one.losses.back());
  EXPECT_EQ(one.dropped[0] > 0, c.factor > 0);
  const int ranks = static_cast<int>(shares.size());
  replicate(ranks, [&](const Group& group) {
    Place place{ExpertParallel(group), TensorParallel(group.subgroup({group.rank()}, "tp"), kSeed),
                group, group.subgroup({group.rank()}, "dp")};
    place.first = std::accumulate(shares.begin(), shares.begin() + group.rank(), std::int64_t{0});
    place.count = shares[static_cast<std::size_t>(group.rank())];
    expect_same(train(c, place), one, c.type);
  });
}

TEST(Experts, EqualOneProcessWithoutDroppedTokens) {
  compare({.top_k = 2}, {7});
  compare({.top_k = 1}, {4, 3});
  compare({.top_k = 2}, {4, 3});
  compare({.top_k = 1}, {2, 1, 3, 1});
  compare({.top_k = 2}, {2, 1, 3, 1});
  compare({.top_k = 2, .type = at::kFloat}, {4, 3});
}

TEST(Experts, EqualOneProcessWithTokensDroppedOverTheCapacity) {
  compare({.top_k = 1, .factor = 1}, {7});
  compare({.top_k = 1, .factor = 0.7}, {4, 3});
  compare({.top_k = 2, .factor = 1}, {2, 1, 3, 1});
  compare({.top_k = 1, .factor = 1, .type = at::kFloat}, {2, 1, 3, 1});
}

TEST(Experts, TrainWithRanksWithoutTokens) {
  compare({.top_k = 2}, {0, 7});
  compare({.top_k = 1, .factor = 1}, {3, 0, 4, 0});
}

// Ranks 2 i and 2 i + 1 are along the first axis, i along the second.
std::pair<Group, Group> axes(const Group& group) {
  const int r = group.rank();
  return {group.subgroup({r / 2 * 2, r / 2 * 2 + 1}, "first"),
          group.subgroup({r % 2, r % 2 + 2}, "second")};
}

TEST(Experts, EqualOneProcessWithDataParallelism) {
  for (const double factor : {0.0, 1.0}) {
    const Case c{.factor = factor};
    const Trained one = alone(c);
    replicate(4, [&](const Group& group) {
      const auto [ep, dp] = axes(group);
      Place place{ExpertParallel(ep, group),
                  TensorParallel(group.subgroup({group.rank()}, "tp"), kSeed), group, dp};
      place.first = std::vector<std::int64_t>{0, 3, 3, 5}[static_cast<std::size_t>(group.rank())];
      place.count = std::vector<std::int64_t>{3, 0, 2, 2}[static_cast<std::size_t>(group.rank())];
      expect_same(train(c, place), one, c.type);
    });
  }
}

TEST(Experts, EqualOneProcessWithTensorParallelism) {
  for (const double factor : {0.0, 1.0}) {
    const Case c{.factor = factor};
    const Trained one = alone(c);
    replicate(4, [&](const Group& group) {
      const auto [tp, ep] = axes(group);
      Place place{ExpertParallel(ep), TensorParallel(tp, kSeed), ep,
                  group.subgroup({group.rank()}, "dp")};
      place.first = ep.rank() == 0 ? 0 : 4;
      place.count = ep.rank() == 0 ? 4 : 3;
      expect_same(train(c, place), one, c.type);
    });
  }
}

TEST(Experts, StartWithTheBitsOfOneProcess) {
  torch::manual_seed(kSeed);
  const Net one(options_of(2, 0), {}, {});
  replicate(2, [&](const Group& group) {
    const ExpertParallel ep(group);
    const Net net(options_of(2, 0), ep,
                  TensorParallel(group.subgroup({group.rank()}, "tp"), kSeed));
    const auto lie = expert_slices(net);
    EXPECT_EQ(lie.size(), 3u);
    for (const auto& p : net.named_parameters()) {
      const at::Tensor want = one.named_parameters()[p.key()];
      EXPECT_EQ(lie.contains(p.key()),
                p.key().starts_with("experts.") && p.key() != "experts.router.weight")
          << p.key();
      const at::Tensor part = lie.contains(p.key()) ? want.narrow(0, 2 * group.rank(), 2) : want;
      EXPECT_TRUE(torch::equal(p.value(), part)) << p.key();
    }
  });
}

TEST(Experts, ExchangeTheDocumentedBytes) {
  using Calls = std::map<std::string, std::vector<std::int64_t>>;
  for (const double factor : {0.0, 0.5}) {  // half of an even share, so that every rank drops some
    std::vector<std::int64_t> moved(2), dropped(2);
    replicate(2, [&](const Group& group) {
      const std::int64_t experts = 4, top_k = 2, sequences = group.rank() + 1, row = kWidth * 4;
      const TensorParallel tp(group.subgroup({group.rank()}, "tp"), kSeed);
      MixtureOfExperts layer(options_of(top_k, factor), ExpertParallel(group), tp);
      const at::Tensor x =
          wave({sequences, kTokens, kWidth}, group.rank(), at::kFloat).requires_grad_();
      comm::CountedCalls counted;
      const at::Tensor y = layer->forward(x);
      const Calls forward = counted.take_each();
      ASSERT_EQ(forward.at("all_to_all").size(), 2u);
      const std::int64_t out = forward.at("all_to_all")[0], in = forward.at("all_to_all")[1];
      EXPECT_EQ(forward,
                (Calls{{"all_gather", {(2 * experts + 1) * 8}}, {"all_to_all", {out, in}}}));
      EXPECT_EQ(out == top_k * sequences * kTokens * row, factor == 0);
      y.sum().backward();
      EXPECT_EQ(counted.take_each(), (Calls{{"all_to_all", {out, in}}})) << "the other way round";
      moved[static_cast<std::size_t>(group.rank())] = 2 * (out + in);
      const auto& over = layer->load().dropped;
      dropped[static_cast<std::size_t>(group.rank())] =
          std::accumulate(over.begin(), over.end(), std::int64_t{0});
    });
    EXPECT_EQ(dropped[0] > 0, factor > 0);
    EXPECT_EQ(moved[0] + moved[1], 4 * kWidth * 4 * (2 * 3 * kTokens - dropped[0]))
        << "4 width (sum of m_r) numbers";
  }
}

TEST(Experts, CountTheLoadOfEachLayerByName) {
  Net net(options_of(2, 1), {}, {});
  net.forward(wave({2, kTokens, kWidth}, 0.1, at::kFloat));
  const auto loads = expert_loads(net);
  ASSERT_EQ(loads.size(), 1u);
  const ExpertLoad& load = loads.at("experts");
  EXPECT_EQ(std::accumulate(load.wanted.begin(), load.wanted.end(), std::int64_t{0}),
            2 * 2 * kTokens);
  const ExpertLoad known{.wanted = {6, 2, 0, 4}, .dropped = {3, 0, 0, 0}, .tokens = 6};
  EXPECT_DOUBLE_EQ(known.dropped_share(), 0.25);
  EXPECT_DOUBLE_EQ(known.imbalance(), 2);
  EXPECT_DOUBLE_EQ(ExpertLoad{}.dropped_share(), 0);
  const at::Tensor other = wave({1, kTokens, kWidth}, 0.7, at::kFloat);
  net.forward(other);
  ExpertLoad both = load;
  both.add(expert_loads(net).at("experts"));
  net.eval();
  net.forward(other);
  EXPECT_FALSE(net.experts->auxiliary().defined());
  const ExpertLoad sum = take_expert_loads(net).at("experts");
  EXPECT_EQ(sum.wanted, both.wanted) << "of two forwards, and not the one in evaluation";
  EXPECT_EQ(sum.dropped, both.dropped);
  EXPECT_EQ(sum.tokens, 3 * kTokens);
  EXPECT_EQ(take_expert_loads(net).at("experts").tokens, 0);
}

void train_until(const Group& group, const std::function<void()>& before_third) {
  Net net(options_of(2, 0), ExpertParallel(group),
          TensorParallel(group.subgroup({group.rank()}, "tp"), kSeed));
  for (int step = 0; step < 4; ++step) {
    const at::Tensor y = net.forward(wave({2, kTokens, kWidth}, step, at::kFloat));
    if (step == 2) before_third();
    y.sum().backward();
  }
}

TEST(ExpertsFailureTiming, AKilledRankIsPeerLostOnTheSurvivorsWithinFiveSeconds) {
  for (const char* transport : {"shm", "tcp"}) {
    expect_within(5s, [&](SlowestRank& slowest) {
      const auto codes = comm::fork_ranks(4, transport, [&](const Group& group) {
        torch::set_num_threads(1);
        return comm::ends_with(Errc::kPeerLost, group, slowest, [&] {
          train_until(group, [&] {
            if (group.rank() == 2) raise(SIGKILL);
          });
        });
      });
      EXPECT_EQ(codes, (std::vector<int>{0, 0, -SIGKILL, 0})) << transport;
    });
  }
}

TEST(ExpertsFailureTiming, EndsOnAllRanksWithinFiveSecondsIfOneThrows) {
  for (const bool part : {false, true}) {  // some of the ranks wait in a subgroup
    expect_within(5s, [&](SlowestRank& slowest) {
      const auto start = Clock::now();
      try {
        replicate(4, [&](const Group& group) {
          const auto [first, second] = axes(group);
          MixtureOfExperts layer(options_of(2, 0), ExpertParallel(part ? first : group));
          for (int step = 0; step < 4; ++step) {
            const at::Tensor y =
                layer->forward(wave({2, kTokens, kWidth}, step, at::kFloat).requires_grad_());
            if (group.rank() == 1 && step == 2) throw std::runtime_error("bad batch");
            try {
              y.sum().backward();
            } catch (const Error& error) {
              EXPECT_EQ(error.code(), Errc::kAborted);
              throw;
            }
          }
          EXPECT_TRUE(part && group.rank() > 1);
        });
        FAIL();
      } catch (const std::runtime_error& error) {
        EXPECT_THAT(error.what(), HasSubstr("bad batch"));
      }
      slowest.report_since(start);
    });
  }
}

}  // namespace
}  // namespace weft::parallel

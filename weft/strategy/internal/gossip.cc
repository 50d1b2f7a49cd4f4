// Gossip: each worker averages its weights with a few neighbors, not with all workers.
//
//   x_i = self * x_i + sum over the neighbors j that worker i hears of weight_j * x_j
//
// Lian and others: Can decentralized algorithms outperform centralized algorithms?, 2017
// (arXiv:1705.09056): D-PSGD. Here the optimizer's step comes before the averaging ("adapt, then
// combine"), so that a worker's neighbors see its newest step. The weights of the graphs are doubly
// stochastic. On the directed graphs (exponential, one_peer_exponential), the correction of
// stochastic gradient push (Assran and others 2019, arXiv:1811.10792) is therefore 1.
//
// With a codec C, a worker sends what its neighbors do not know yet of its weights:
//
//   q_i = C(x_i - known_i),   known_i = known_i + q_i
//   near_i = near_i + self * q_i + sum of weight_j * q_j      (the mean of the neighbors' known_j)
//   x_i = x_i + lr * (near_i - known_i)
//
// Koloskova, Stich, Jaggi: Decentralized stochastic optimization and gossip algorithms with
// compressed communication, 2019 (arXiv:1902.00340): CHOCO-SGD. What a codec leaves out stays in
// x_i - known_i, so there is no other error feedback. The paper proves that a small lr converges
// and tunes it; default_lr() has values found by trials. Here near_i and known_i begin with the
// common first weights, the paper's with zeros.
//
// Sends: the weights to each neighbor, once each period: one to four messages a rank at any number
// of workers, and no barrier, so a slow worker delays only its neighbors. With a codec, these
// messages have encodings. After a checkpoint was loaded, the weights go once without it.
// Limits: the workers' weights differ; the mixing rate of the graph (schedule/gossip.h) says by how
// much an exchange shrinks their distance. Their mean is what all gradients together have made. A
// codec needs the same neighbors in each round, and two more vectors of the weights' size.
#include "weft/comm/gossip.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "weft/base/error.h"
#include "weft/compress/codec.h"
#include "weft/compress/spec.h"
#include "weft/strategy/internal/flat_rule.h"

namespace weft::strategy::internal {
namespace {

class Gossip final : public FlatRule {
 public:
  Gossip(const Strategy& strategy, Part part)
      : FlatRule(strategy, std::move(part)), graph_(schedule::parse_graph(strategy.graph)) {}

 private:
  void exchange(const Step& step) override {
    const at::Tensor x = weights().read();
    comm::gossip(part().workers, {x}, round_of(step), {.graph = graph_});
    weights().write(x);
  }

  const schedule::Graph graph_;
};

// The lr of a codec. The worst case is values that are independent in all workers, over 4 to 8
// workers on a ring or an exponential graph: with twice the value for the sparse codecs, they
// diverge or do not come closer. Codecs with many bits lose too little to matter.
double default_lr(const compress::Spec& spec) {
  switch (spec.kind) {
    case compress::Kind::kTopK: return std::min(1.0, 2 * spec.amount);
    case compress::Kind::kRandomK: return spec.amount / 2;
    case compress::Kind::kSign:
    case compress::Kind::kThreshold: return 0.2;
    default: return 1;
  }
}

class CompressedGossip final : public FlatRule {
 public:
  CompressedGossip(const Strategy& strategy, Part part, const compress::Spec& spec)
      : FlatRule(strategy, std::move(part)),
        graph_(schedule::parse_graph(strategy.graph)),
        mixing_(schedule::mixing({graph_, size()}, this->part().workers.rank(), 0)),
        spec_(spec),
        codec_(compress::make_codec(spec)),
        lr_(strategy.lr < 0 ? default_lr(spec) : strategy.lr),
        known_(weights().zeros()),
        near_(weights().zeros()) {
    WEFT_REQUIRE(known_.scalar_type() == at::kFloat,
                 "strategy.codec = \"" + strategy.codec + "\" is for weights of float32");
  }

  State state() override {
    State state = FlatRule::state();
    state.own.push_back(known_);
    return state;
  }
  void reset_own() override {
    const at::NoGradGuard no_grad;
    known_.copy_(weights().read());
  }
  // Other workers may have other numbers than before, or none: near_i is computed anew.
  void take_restored() override {
    const at::NoGradGuard no_grad;
    near_.copy_(known_);
    comm::gossip(part().workers, {near_}, 0, {.graph = graph_});
  }

 private:
  void start() override {
    known_.copy_(weights().read());
    near_.copy_(known_);
  }

  void exchange(const Step& step) override {
    if (size() == 1) return;
    const std::int64_t round = round_of(step);
    at::Tensor x = weights().read(), rest = x - known_;
    std::vector<std::byte> wire;
    codec_->encode({rest.const_data_ptr<float>(), static_cast<std::size_t>(rest.numel())},
                   draw(round, part().workers.rank()), wire, nullptr);
    const std::vector<at::Tensor> heard = hear(wire);

    const at::Tensor sent = decoded(wire, draw(round, part().workers.rank()));
    known_.add_(sent);
    near_.add_(sent, mixing_.self);
    for (std::size_t i = 0; i < heard.size(); ++i) {
      const schedule::Neighbor& from = mixing_.hears[i];
      near_.add_(decoded({static_cast<const std::byte*>(heard[i].const_data_ptr()),
                          static_cast<std::size_t>(heard[i].numel())},
                         draw(round, from.rank)),
                 from.weight);
    }
    weights().write(x.add_(near_ - known_, lr_));
  }

  // The neighbors' encodings.
  std::vector<at::Tensor> hear(std::vector<std::byte>& wire) const {
    const auto length = static_cast<std::int64_t>(wire.size());
    std::vector<std::int64_t> lengths;
    if (!codec_->fixed()) {
      const at::Tensor mine = at::full({1}, length, at::kLong);
      for (const at::Tensor& one : comm::exchange_with_neighbors(part().workers, mixing_, mine))
        lengths.push_back(one.item<std::int64_t>());
    }
    return comm::exchange_with_neighbors(part().workers, mixing_,
                                         at::from_blob(wire.data(), {length}, at::kByte), lengths);
  }
  at::Tensor decoded(std::span<const std::byte> wire, const compress::Draw& draw) const {
    at::Tensor values = weights().zeros();
    codec_->add(wire, draw,
                {values.mutable_data_ptr<float>(), static_cast<std::size_t>(values.numel())});
    return values;
  }
  compress::Draw draw(std::int64_t round, int worker) const {
    return {.seed = spec_.seed, .step = round, .unit = 0, .rank = worker};
  }

  const schedule::Graph graph_;
  const schedule::Mixing mixing_;
  const compress::Spec spec_;
  const std::unique_ptr<compress::Codec> codec_;
  const double lr_;
  at::Tensor known_;  // of this worker's weights, by those who hear it
  at::Tensor near_;   // mean of what is known of this worker and those that it hears
};

}  // namespace

std::unique_ptr<Rule> gossip(const Strategy& strategy, Part part) {
  const compress::Spec spec = compress::parse(strategy.codec);
  if (spec.kind == compress::Kind::kNone)
    return std::make_unique<Gossip>(strategy, std::move(part));
  return std::make_unique<CompressedGossip>(strategy, std::move(part), spec);
}

}  // namespace weft::strategy::internal

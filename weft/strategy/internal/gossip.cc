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
// Sends: the weights to each neighbor, once each period: one to four messages a rank at any number
// of workers, and no barrier, so a slow worker delays only its neighbors.
// Limits: the workers' weights differ; the mixing rate of the graph (schedule/gossip.h) says by how
// much an exchange shrinks their distance. Their mean is what all gradients together have made.
#include "weft/comm/gossip.h"

#include <ATen/ATen.h>

#include <utility>

#include "weft/strategy/internal/flat_rule.h"

namespace weft::strategy::internal {
namespace {

class Gossip final : public FlatRule {
 public:
  Gossip(const Strategy& strategy, Part part)
      : FlatRule(strategy, std::move(part)), graph_(schedule::parse_graph(strategy.graph)) {}

 private:
  // Rounds of the graph are counted by steps, so that they go on where a resumed run is.
  void exchange(const Step& step) override {
    const at::Tensor x = weights().read();
    comm::gossip(part().workers, {x}, step.number / period(), {.graph = graph_});
    weights().write(x);
  }

  const schedule::Graph graph_;
};

}  // namespace

std::unique_ptr<Rule> gossip(const Strategy& strategy, Part part) {
  return std::make_unique<Gossip>(strategy, std::move(part));
}

}  // namespace weft::strategy::internal

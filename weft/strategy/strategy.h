// Strategy: how workers train together without adding their gradients at every step.
//
//   sync ── gradients are averaged at every step: data parallelism (engine), no rule of this folder
//
//   local_sgd, slow_momentum, diloco, easgd, gossip:
//
//     worker 0   step step step step ┐          ┌ step step step step ┐
//     worker 1   step step step step ┼ exchange ┼ step step step step ┼ exchange …
//     worker 2   step step step step ┘          └ step step step step ┘
//
//   downpour, easgd_async: each worker exchanges with a center (center.h), at its own time
//   ad_psgd: each worker averages its weights with a random neighbor, at its own time
//   sync with backup workers: a step takes the gradients of the workers that are ready first
//
// Each worker has weights and an optimizer of its own, and does `period` optimizer steps on its own
// samples between two exchanges. Where a worker is several ranks (fsdp, tp, pp, …), each of them
// works with the ranks that hold the same part of the other workers' models.
//
// One file a rule, in internal/: the paper, the equations, what it sends, its limits.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weft/comm/group.h"
#include "weft/strategy/center.h"

namespace weft::strategy {

struct Strategy {
  std::string name = "sync";
  // Optimizer steps between two exchanges. 0: the rule's default (default_period()).
  std::int64_t period = 0;
  // Steps at the start with an exchange after each one: "post-local SGD" (Lin and others 2020).
  std::int64_t sync_steps = 0;
  // Steps between changes of the period, which then falls with the loss, or by half where the loss
  // has not fallen enough: AdaComm (Wang and Joshi 2019). 0: the period stays. Not with diloco and
  // asynchronous rules.
  std::int64_t adapt_steps = 0;
  // slow_momentum and diloco: learning rate and momentum of the step that the exchange makes. Below
  // 0: the rule's default. slow_momentum: 1 and 0.5. diloco: 0.7 and 0.9. downpour: factor of what
  // a worker adds to the center, where 1 is its share of the mean. gossip with a codec: share of
  // the way to the neighbors' mean, in (0, 1]; the default depends on the codec.
  double lr = -1, momentum = -1;
  // diloco: the weights are exchanged in so many fragments, one after the other over the period.
  int fragments = 1;
  // easgd: the share of the way that the center moves to the mean of the workers in an exchange.
  double beta = 0.9;
  // gossip, ad_psgd: who averages with whom (schedule/gossip.h). ad_psgd: in both directions.
  std::string graph = "exponential";
  // downpour and easgd_async: a worker waits until the slowest one is at most so many exchanges
  // behind, by the numbers of their steps. 0: all wait for each other. Below 0: nobody waits.
  std::int64_t staleness = -1;
  // downpour: factor of the correction of gradients that were computed from older weights (DC-ASGD:
  // Zheng and others 2017). 0: none.
  double delay_compensation = 0;
  // sync: number of gradients that a step leaves out, those that come last (Chen and others
  // 2016).
  int backup = 0;
  // Codec of the exchanged weights or differences (compress/spec.h). Not with ad_psgd and backup
  // workers. downpour and easgd_async: with a center on servers that has the same codec. gossip: on
  // a graph whose rounds are equal. These three: not powersgd, nor the options warmup and ef=off
  // of randomk.
  std::string codec = "none";
};

// "sync", "local_sgd", "slow_momentum", "diloco", "easgd", "gossip", "downpour", "easgd_async",
// "ad_psgd". "sync" is the first.
std::span<const char* const> names();
// True unless all gradients are averaged at every step. Replicas are then workers.
inline bool exchanges_weights(const Strategy& strategy) {
  return strategy.name != "sync" || strategy.backup > 0;
}
// True for rules whose workers need not do the same number of steps: downpour, easgd_async,
// ad_psgd, and sync with backup workers.
bool is_asynchronous(const Strategy& strategy);
// 16 for local_sgd and slow_momentum, 100 for diloco, 8 for easgd and easgd_async, else 1.
std::int64_t default_period(const std::string& name);

// Throws Error(kBadConfig), one line with the key of a recipe, for a strategy that cannot work with
// so many workers.
void check(const Strategy& strategy, int workers);

// What a worker of so many weights (of one rank) sends, in one line: "local_sgd: 4 workers average
// their weights every 16 steps; a rank sends 2.5 MB for it, 0.16 MB a step". Also the mixing rate
// of graphs, and the range in which elastic averaging is stable. Pure function.
std::string describe(const Strategy& strategy, int workers, std::int64_t weights);

// Elastic averaging with SGD and period 1 on a quadratic loss is stable where the learning rate
// times the largest curvature is below this number. At most 2, the bound of SGD itself; not
// positive: it is never stable. Zhang, Choromanska and LeCun 2015 (arXiv:1412.6651), section 4.
// Pure function.
double easgd_bound(double beta, int workers, bool asynchronous);
// Mean factor by which a round of ad_psgd (an exchange of each worker) shrinks the distance of the
// workers' weights from their mean: the root of the expected square. Pure function.
double pairwise_mixing_rate(const std::string& graph, int workers);

// The part of a worker's model that this rank holds.
struct Part {
  // The ranks that hold the same part of each worker's model, by the number of the worker.
  Group workers;
  Group world;  // All ranks of all workers.
  // Trained parameters, float32 or float64, in place: the same shapes in the same order in each
  // worker.
  std::vector<at::Tensor> weights;
  // Whether a weight, by its place in `weights`, is trained now. Null: by its requires_grad().
  std::function<bool(std::size_t weight)> trains = nullptr;
  // Floating-point buffers, such as running statistics. Rules leave them alone. result() has their
  // mean.
  std::vector<at::Tensor> buffers = {};
  // Backup workers: the floating-point state of the worker's optimizer, in place. The same shapes
  // at each call. Without it, the worker's optimizer has none.
  std::function<std::vector<at::Tensor>()> optimizer_state = nullptr;
  // downpour and easgd_async: the center. Null: shared_center(). On several hosts:
  // server_center() of strategy/server.
  MakeCenter make_center = nullptr;
};

// Staleness of exchanges, as a histogram: how many exchanges of other workers came between reading
// the weights and adding the change that was computed from them.
struct Staleness {
  // First value of each bucket; the last one has no end.
  static constexpr std::array<int, 9> kFirst = {0, 1, 2, 3, 4, 8, 16, 32, 64};
  std::array<std::int64_t, kFirst.size()> counts{};
  std::int64_t sum = 0, largest = 0;

  void add(std::int64_t staleness);
  std::int64_t exchanges() const;
  // "0", "4_7", "64_up".
  static std::string name_of(std::size_t bucket);
};

// A step that a worker has done.
struct Step {
  // Counts from 1, the same on all ranks. Asynchronous rules count the period by calls instead.
  // They use this number for sync_steps and staleness, and it may stay or grow by more than 1.
  std::int64_t number = 1;
  double lr = 0;  // Learning rate of the worker's optimizer.
  // This rank's part of the loss, summed over samples, and of the number of samples: the sums over
  // all ranks of all workers are those of the step. For adapt_steps.
  double loss = 0, samples = 0;
};

// A rule at work. One thread at a time calls it. All ranks make it and call its methods in one
// order, except for methods marked "Not collective".
class Rule {
 public:
  virtual ~Rule() = default;
  Rule(const Rule&) = delete;
  Rule& operator=(const Rule&) = delete;

  // Call it after each optimizer step of the worker. Exchanges if it is time, and writes the
  // worker's weights then. Returns true if it has. Throws as Group's operations do. An exchange
  // throws Error(kInvalidArgument) if a weight got other memory since restart() and restored(), as
  // by torch::load(): the rule would take the new values for training. So does a weight that was
  // frozen, or unfrozen, since then (Part::trains): momentum and other workers would still move it.
  // Rules that exchange with all workers at once throw on all ranks. gossip and asynchronous rules
  // abort Part::workers by it.
  virtual bool after_step(const Step& step) = 0;

  // The model that the workers have found together: the mean of their weights, or the center of
  // easgd, and the mean of their buffers. Evaluate and save this one. Valid until the next call.
  struct Result {
    std::vector<at::Tensor> weights, buffers;  // In the order and shapes of the part.
  };
  virtual const Result& result() = 0;

  // State for the next step, in place: saved to a checkpoint and overwritten on loading. Not
  // collective.
  struct State {
    // By name: one tensor for each weight, the same in all workers: "anchor", "momentum", "center".
    std::map<std::string, std::vector<at::Tensor>> arrays;
    at::Tensor numbers;           // float64 [n]; the same on all ranks.
    std::vector<at::Tensor> own;  // [n] each; of this rank alone, such as the codec's memory.
  };
  virtual State state() = 0;
  // Call it where a checkpoint has no State::own of this rank, after the weights were loaded: sets
  // it as after an exchange. Not collective.
  virtual void reset_own() = 0;
  // Call it after the weights and a State were loaded. Collective.
  virtual void restored() {}
  // Begins again from the present weights and buffers of worker 0, which are copied to the others.
  // Codecs drop what they have not sent yet.
  virtual void restart() = 0;
  // Steps between exchanges now. Not collective.
  virtual std::int64_t period() const = 0;

  // Asynchronous rules. A worker calls leave() when it has no more steps for now: no other worker
  // waits for it then. begin() lets all workers take part again, and may write their weights.
  // `step`: the number of the last step that all workers have done. make_rule() has begun with 0.
  // begin() is collective, leave() is not.
  virtual void begin([[maybe_unused]] std::int64_t step) {}
  virtual void leave() {}
  // Staleness of this worker's exchanges; of steps: how many were left out by `backup`. Both since
  // the rule was made. Not collective.
  virtual Staleness staleness() const { return {}; }
  virtual std::int64_t dropped_steps() const { return 0; }

 protected:
  Rule() = default;
};

// Makes the rule. All workers begin with the weights and buffers of worker 0, which are copied to
// the others. Throws as check() does, Error(kBadConfig) if an asynchronous rule has workers on
// several hosts and no Part::make_center, and Error(kInvalidArgument) for parts that differ between
// workers, have no weights, or weights that are neither float32 nor float64.
std::unique_ptr<Rule> make_rule(const Strategy& strategy, Part part);

}  // namespace weft::strategy

namespace weft {
using strategy::Strategy;
}

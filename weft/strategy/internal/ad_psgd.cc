// AD-PSGD: each worker averages its weights with a random neighbor, at its own time.
//
//   x_i = x_j = (x_i + x_j) / 2,   x_i = x_i + (what worker i has learned since its last exchange)
//
// Lian, Zhang, Zhang and Liu: Asynchronous decentralized parallel stochastic gradient descent, 2018
// (arXiv:1710.06952), algorithm 1. All workers' weights x are in shared memory. A worker trains on
// a copy, while neighbors may average with its x. So its gradients are of weights that are older
// than those that they are added to. The paper keeps two averaging workers from waiting for each
// other by a bipartite graph. Here an average takes the locks of one chunk of both workers in the
// order of their numbers, so any graph will do.
//
// Neighbors are those of the graph in both directions (schedule/gossip.h); of random_matching: all
// workers.
//
// Sends: nothing between hosts. Each exchange reads and writes the vector of one other worker.
// Limits: one host. No two runs have the same bits. The workers' weights differ; their mean is what
// all changes together have made.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "weft/base/random.h"
#include "weft/schedule/gossip.h"
#include "weft/strategy/internal/asynchronous_rule.h"
#include "weft/strategy/internal/shared_memory.h"

namespace weft::strategy {
namespace {

constexpr std::int64_t kElements = 8192;          // elements: 32 KiB of float32
constexpr std::uint32_t kNeighbors = 0x61647073;  // a stream of random numbers: "adps"

std::vector<int> neighbors_of(const std::string& graph, int workers, int worker) {
  const schedule::Gossip gossip{schedule::parse_graph(graph), workers};
  std::set<int> found;
  if (gossip.graph == schedule::Graph::kRandomMatching) {
    for (int other = 0; other < workers; ++other) found.insert(other);
  } else {
    for (int round = 0; round < schedule::distinct_rounds(gossip); ++round) {
      const schedule::Mixing mixing = schedule::mixing(gossip, worker, round);
      for (const schedule::Neighbor& neighbor : mixing.hears) found.insert(neighbor.rank);
      found.insert(mixing.sends_to.begin(), mixing.sends_to.end());
    }
  }
  found.erase(worker);
  return {found.begin(), found.end()};
}

// E[W] of an exchange of a random worker with a random neighbor, times x.
std::vector<double> expected(const std::vector<std::vector<int>>& neighbors,
                             const std::vector<double>& x) {
  std::vector<double> y = x;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double share = 0.5 / static_cast<double>(x.size() * neighbors[i].size());
    for (const int neighbor : neighbors[i]) {
      const auto j = static_cast<std::size_t>(neighbor);
      const double half = share * (x[i] - x[j]);
      y[i] -= half;
      y[j] += half;
    }
  }
  return y;
}

double take_out_mean_and_scale(std::vector<double>& x) {
  double mean = 0, square = 0;
  for (const double value : x) mean += value / static_cast<double>(x.size());
  for (double& value : x) {
    value -= mean;
    square += value * value;
  }
  const double norm = std::sqrt(square);
  for (double& value : x) value /= std::max(norm, 1e-300);
  return norm;
}

}  // namespace

// The matrix W of an average is a projection, so E[W^T W] = E[W], whose second largest eigenvalue
// is the factor of the expected square in one exchange. A round has as many exchanges as workers.
double pairwise_mixing_rate(const std::string& graph, int workers) {
  if (workers == 1) return 0;
  std::vector<std::vector<int>> neighbors;
  for (int worker = 0; worker < workers; ++worker)
    neighbors.push_back(neighbors_of(graph, workers, worker));
  Random random(/*seed=*/1);
  std::vector<double> x(static_cast<std::size_t>(workers));
  for (double& value : x) value = random.uniform() - 0.5;
  take_out_mean_and_scale(x);
  double factor = 0;
  for (int step = 0; step < 20'000; ++step) {
    x = expected(neighbors, x);
    const double next = take_out_mean_and_scale(x);
    if (next < 1e-12) return 0;
    if (step > 10 && std::abs(next - factor) < 1e-10 * next) break;
    factor = next;
  }
  return std::pow(factor, workers / 2.0);
}

namespace internal {
namespace {

using Lock = SharedMemory::Lock;

class AdPsgd final : public AsynchronousRule {
 public:
  AdPsgd(const Strategy& strategy, Part part)
      : AsynchronousRule(strategy, std::move(part)),
        chunks_((weights().count() + kElements - 1) / kElements),
        memory_(this->part().workers, sizeof(std::atomic<std::int64_t>) * kCounters +
                                          sizeof(Lock) * locks() +
                                          weights().zeros().nbytes() * all()),
        neighbors_(neighbors_of(strategy.graph, size(), me())),
        read_(weights().zeros()),
        drawn_(at::zeros({1}, at::kDouble)) {
    std::byte* at = memory_.data();
    exchanges_ = reinterpret_cast<std::atomic<std::int64_t>*>(at);
    at += sizeof(std::atomic<std::int64_t>) * kCounters;
    locks_ = reinterpret_cast<Lock*>(at);
    at += sizeof(Lock) * locks();
    all_ = at::from_blob(at, {size(), weights().count()}, read_.options());
  }

  State state() override {
    State state = AsynchronousRule::state();
    state.own.insert(state.own.end(), {drawn_, read_, all_[me()]});
    return state;
  }
  void reset_own() override {
    AsynchronousRule::reset_own();
    drawn_.zero_();
    read_.copy_(weights().read());
    all_[me()].copy_(read_);
  }

 private:
  // The counter has a cache line of its own.
  static constexpr std::size_t kCounters = 64 / sizeof(std::atomic<std::int64_t>);

  std::size_t all() const { return static_cast<std::size_t>(size()); }
  std::size_t locks() const { return all() * static_cast<std::size_t>(chunks_); }
  int me() const { return part().workers.rank(); }
  void meet() const { part().workers.barrier(); }

  void start() override {
    AsynchronousRule::start();
    reset_own();
    meet();
  }

  void exchange(const Step&) override {
    const std::int64_t before = exchanges_->fetch_add(1, std::memory_order_relaxed);
    add_staleness(std::max<std::int64_t>(0, before - seen_));
    seen_ = before + 1;
    at::Tensor x = weights().read();
    const at::Tensor change = x - read_;
    const int other = draw_neighbor();
    for (std::int64_t i = 0; i < chunks_; ++i)
      exchange_chunk((chunks_ * me() / size() + i) % chunks_, other, change);
    memory_.notify();
    if (other >= 0) memory_.count_moved(2 * read_.nbytes());
    weights().write(read_);
  }

  int draw_neighbor() {
    if (neighbors_.empty()) return -1;
    double& drawn = *drawn_.mutable_data_ptr<double>();
    const auto index =
        (static_cast<std::uint64_t>(drawn++) << 16) + static_cast<std::uint64_t>(me());
    return neighbors_[Random(0, kNeighbors, index).below(neighbors_.size())];
  }

  void exchange_chunk(std::int64_t chunk, int other, const at::Tensor& change) {
    const std::int64_t begin = chunk * kElements,
                       length = std::min(kElements, weights().count() - begin);
    const auto part_of = [&](const at::Tensor& vector) { return vector.narrow(0, begin, length); };
    const auto lock_of = [&](int worker) -> Lock& { return locks_[worker * chunks_ + chunk]; };
    const at::Tensor mine = part_of(all_[me()]);
    if (other < 0) {
      mine.add_(part_of(change));
      part_of(read_).copy_(mine);
    } else {
      const SharedMemory::Hold first(memory_, lock_of(std::min(me(), other))),
          second(memory_, lock_of(std::max(me(), other)));
      const at::Tensor theirs = part_of(all_[other]);
      theirs.add_(mine).div_(2);
      mine.copy_(theirs).add_(part_of(change));
      // With the locks: a neighbor that waits for them adds to `mine` before it divides.
      part_of(read_).copy_(mine);
    }
  }

  at::Tensor result_weights() override {
    meet();
    at::Tensor mean = all_.mean(0);
    meet();
    return mean;
  }

  const std::int64_t chunks_;
  const SharedMemory memory_;
  const std::vector<int> neighbors_;
  std::atomic<std::int64_t>* exchanges_ = nullptr;  // of all workers
  Lock* locks_ = nullptr;                           // by worker and chunk
  at::Tensor all_;                                  // [workers, count]: x
  at::Tensor read_;   // [count]: x of this worker, as it has read it last
  at::Tensor drawn_;  // [1]: neighbors drawn so far
  std::int64_t seen_ = 0;
};

}  // namespace

std::unique_ptr<Rule> ad_psgd(const Strategy& strategy, Part part) {
  return std::make_unique<AdPsgd>(strategy, std::move(part));
}

}  // namespace internal
}  // namespace weft::strategy

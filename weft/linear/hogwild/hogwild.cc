#include "weft/linear/hogwild/hogwild.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <exception>
#include <functional>
#include <map>
#include <new>
#include <numeric>
#include <optional>
#include <string>
#include <thread>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/linear/data/sparse_vector.h"
#include "weft/linear/hogwild/internal/cluster_member.h"
#include "weft/linear/hogwild/internal/relaxed.h"
#include "weft/linear/hogwild/internal/worker.h"
#include "weft/linear/solve/losses.h"

namespace weft::linear {
namespace {

using internal::EpochOptions;
using internal::SharedWeights;
using internal::Worker;

int clusters_of(int workers, const HogwildOptions& options) {
  const int size = options.cluster_size > 0 ? options.cluster_size : workers;
  return std::max(1, (workers + size - 1) / size);
}

// Calls work(t) for each t below `count`, each in a thread of its own. Then throws the first error.
void in_threads(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::vector<std::exception_ptr> errors(count);
  const auto guarded = [&](std::size_t t) {
    try {
      work(t);
    } catch (...) {
      errors[t] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 1; t < count; ++t) threads.emplace_back(guarded, t);
    guarded(0);
  }
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// Memory of this process, for a rank that has its host for itself.
class OwnMemory {
 public:
  explicit OwnMemory(std::size_t bytes)
      : memory_(static_cast<std::byte*>(::operator new(bytes, kAlign))) {
    std::fill_n(memory_, bytes, std::byte{0});
  }
  ~OwnMemory() { ::operator delete(memory_, kAlign); }
  OwnMemory(const OwnMemory&) = delete;
  OwnMemory& operator=(const OwnMemory&) = delete;
  std::byte* get() const { return memory_; }

 private:
  static constexpr std::align_val_t kAlign{SharedWeights::kLine};
  std::byte* memory_;
};

class Hogwild {
 public:
  Hogwild(const RowProblem& problem, std::size_t weights, Ranks& ranks, const HostPlace& place,
          const HogwildOptions& options)
      : problem_(problem),
        weights_(weights),
        ranks_(ranks),
        place_(place),
        options_(options),
        workers_on_host_(place.workers > 0 ? place.workers : options.threads),
        shrink_(weights) {
    const int clusters = clusters_of(workers_on_host_, options_);
    if (place.memory == nullptr) own_.emplace(SharedWeights::bytes(weights, clusters));
    shared_.emplace(own_ ? own_->get() : place.memory, weights, clusters);
    make_workers();
    count_columns();
  }

  HogwildResult run() {
    const std::uint64_t before = ranks_.exchanged_bytes();
    std::array<double, 1> listens{options_.on_epoch ? 1.0 : 0.0};  // any rank
    ranks_.max(listens);
    HogwildResult result;
    Epoch state;
    double step = options_.step / mean_square_;
    for (std::int64_t epoch = 1; epoch <= options_.epochs; ++epoch, step *= options_.decay) {
      const auto start = std::chrono::steady_clock::now();
      run_epoch(epoch, step);
      std::array<double, 1> seconds{seconds_since(start)};
      ranks_.max(seconds);
      state.seconds += seconds[0];
      result.weights = mean_weights();
      if (listens[0] == 0 && epoch < options_.epochs) {
        ranks_.max(listens);  // No rank goes on before the first one has set the mean.
        continue;
      }
      result.objective = state.objective = objective(result.weights);
      state.epoch = epoch;
      state.exchanged_bytes = ranks_.exchanged_bytes() - before;
      if (options_.on_epoch) options_.on_epoch(state);
    }
    return result;
  }

 private:
  // n_j of each column, n, and the mean of |x_i|².
  void count_columns() {
    std::vector<std::vector<double>> parts(workers_.size());
    in_threads(workers_.size(), [&](std::size_t t) {
      parts[t].resize(weights_ + 2);
      for (const Entry& entry : entries_of(workers_[t])) {
        ++parts[t][entry.column];
        parts[t][weights_] += static_cast<double>(entry.value) * entry.value;
      }
      parts[t][weights_ + 1] = static_cast<double>(workers_[t].order.rows());
    });
    std::vector<double>& sums = parts[0];
    for (std::size_t t = 1; t < parts.size(); ++t) {
      for (std::size_t j = 0; j < sums.size(); ++j) sums[j] += parts[t][j];
    }
    ranks_.sum(sums);
    n_ = sums[weights_ + 1];
    WEFT_REQUIRE(n_ > 0, "the data has no rows");
    mean_square_ = sums[weights_] > 0 ? sums[weights_] / n_ : 1;
    counts_.assign(sums.begin(), sums.end() - 2);
    std::array<double, 1> entries{static_cast<double>(problem_.rows->entries.size())};
    ranks_.sum(entries);
    row_entries_ = entries[0] / n_;
  }

  std::span<const Entry> entries_of(const Worker& worker) const {
    const auto& rows = *problem_.rows;
    const std::size_t last = worker.first_row + worker.order.rows();
    return std::span(rows.entries)
        .subspan(rows.begins[worker.first_row], rows.begins[last] - rows.begins[worker.first_row]);
  }

  // An exchange costs about 8 passes over the weights, a row 3 over its entries. At least 8 turns
  // of the token in an epoch.
  std::int64_t exchange_rows() const {
    constexpr double kTimes = 100.0 / 8, kTurns = 8, kLeast = 64;
    if (options_.exchange_rows > 0) return options_.exchange_rows;
    const double cheap = kTimes * static_cast<double>(weights_) / std::max(1.0, row_entries_);
    const double of_worker = n_ / (ranks_.size() * options_.threads);
    const double often = of_worker / (kTurns * std::max(place_.hosts, shared_->clusters()));
    return static_cast<std::int64_t>(std::max(kLeast, std::min(cheap, often)));
  }

  void make_workers() {
    const std::size_t rows = problem_.rows->size();
    const auto threads = static_cast<std::size_t>(options_.threads);
    const int size = options_.cluster_size > 0 ? options_.cluster_size : workers_on_host_;
    for (std::size_t t = 0; t < threads; ++t) {
      const int number = place_.first_worker + static_cast<int>(t);
      const std::size_t first = rows * t / threads, last = rows * (t + 1) / threads;
      const auto seed = options_.seed + static_cast<std::uint64_t>(place_.host) * 1'000'003 +
                        static_cast<std::uint64_t>(number) * 0x9e3779b97f4a7c15;
      workers_.push_back({problem_.rows,
                          problem_.targets,
                          first,
                          RowOrder(last - first, seed),
                          number / size,
                          number % size == 0,
                          {}});
    }
  }

  bool in_ring() const { return place_.messages != nullptr && place_.hosts > 1; }

  // What the first worker of a cluster does between rows.
  std::function<void(std::int64_t)> exchange_of(int cluster) {
    const bool in_ring = ring_ && cluster == 0, in_memory = shared_->clusters() > 1;
    if (!in_ring && !in_memory) return {};
    internal::ClusterMember member(*shared_, cluster, exchange_rows());
    return [=, this](std::int64_t rows) mutable {
      if (in_ring) ring_->poll(rows);
      if (in_memory) member.poll(rows);
    };
  }

  void run_epoch(std::int64_t epoch, double step) {
    for (std::size_t j = 0; j < weights_; ++j) {
      const double often = std::max(1.0, counts_[j]);
      shrink_[j] = static_cast<float>(1 / (1 + step * problem_.objective.l2 * n_ / often));
    }
    if (in_ring()) {
      ring_.emplace(*place_.messages, shared_->weights(0), place_.host, place_.hosts,
                    exchange_rows());
    }
    const EpochOptions options{problem_.objective.loss, options_.locks, static_cast<float>(step),
                               shrink_};
    in_threads(workers_.size(), [&](std::size_t t) {
      Worker& worker = workers_[t];
      if (worker.leads) worker.between = exchange_of(worker.cluster);
      internal::run_epoch(worker, static_cast<std::uint64_t>(epoch), options, *shared_);
      if (worker.leads) shared_->ended(worker.cluster).store(1, std::memory_order_release);
    });
    if (ring_) ring_->finish();
  }

  // The mean over all clusters of all hosts, weighted by their rows, which becomes the weights of
  // each. The first rank of a host sets it for the host's clusters.
  std::vector<double> mean_weights() {
    std::map<int, double> rows;  // of this rank, by cluster
    for (const Worker& worker : workers_)
      rows[worker.cluster] += static_cast<double>(worker.order.rows());
    std::vector<double> sums(weights_);
    for (const auto& [cluster, count] : rows) {
      if (count == 0) continue;
      const auto weights = shared_->weights(cluster);
      for (std::size_t j = 0; j < weights_; ++j) sums[j] += count * internal::load(weights[j]);
    }
    ranks_.sum(sums);
    for (double& weight : sums) weight /= n_;
    const bool several = place_.hosts > 1 || shared_->clusters() > 1;
    if (place_.first_worker == 0 && several) set_weights(sums);
    return sums;
  }

  void set_weights(const std::vector<double>& mean) {
    for (int cluster = 0; cluster < shared_->clusters(); ++cluster) {
      const auto weights = shared_->weights(cluster), snapshot = shared_->snapshot(cluster);
      for (std::size_t j = 0; j < weights_; ++j) {
        snapshot[j] = static_cast<float>(mean[j]);
        internal::store(weights[j], snapshot[j]);
      }
      shared_->ended(cluster).store(0, std::memory_order_release);
    }
    shared_->turn().store(0, std::memory_order_release);
  }

  double objective(const std::vector<double>& weights) {
    std::vector<double> parts(workers_.size());
    in_threads(workers_.size(), [&](std::size_t t) { parts[t] = losses_of(workers_[t], weights); });
    std::array<double, 1> losses{std::accumulate(parts.begin(), parts.end(), 0.0)};
    ranks_.sum(losses);
    const double found = losses[0] / n_ + regularizer(problem_.objective, weights);
    WEFT_REQUIRE(std::isfinite(found), "the objective is not finite any more: step " +
                                           json_number(options_.step) + " is too large");
    return found;
  }

  // Σ φ(x_i·w) over the worker's rows.
  double losses_of(const Worker& worker, const std::vector<double>& weights) const {
    return with_loss(problem_.objective.loss, [&](auto kind) {
      double sum = 0;
      const std::size_t last = worker.first_row + worker.order.rows();
      for (std::size_t i = worker.first_row; i < last; ++i)
        sum += kind.value(dot(problem_.rows->row(i), weights.data()), problem_.targets[i]);
      return sum;
    });
  }

  RowProblem problem_;
  std::size_t weights_;
  Ranks& ranks_;
  HostPlace place_;
  HogwildOptions options_;
  int workers_on_host_;
  std::optional<OwnMemory> own_;
  std::optional<SharedWeights> shared_;
  std::optional<RingMember> ring_;
  std::vector<Worker> workers_;
  std::vector<double> counts_;
  std::vector<float> shrink_;
  double n_ = 0, mean_square_ = 1, row_entries_ = 0;
};

}  // namespace

Locks parse_locks(std::string_view name) {
  if (name == "none") return Locks::kNone;
  if (name == "rows") return Locks::kRows;
  if (name == "columns") return Locks::kColumns;
  throw Error(Errc::kInvalidArgument,
              "no locks \"" + std::string(name) + "\"; there are none, rows and columns");
}

void check(const Objective& objective, const HogwildOptions& options) {
  check(objective);
  WEFT_REQUIRE(objective.l1 == 0, "Hogwild! does not support l1; use cocoa+");
  WEFT_REQUIRE(options.threads >= 1 && options.threads <= 1024, "threads must be from 1 to 1024");
  WEFT_REQUIRE(options.cluster_size >= 0, "cluster_size must be at least 0");
  WEFT_REQUIRE(options.epochs >= 1, "epochs must be at least 1");
  WEFT_REQUIRE(options.exchange_rows >= 0, "exchange_rows must be at least 0");
  WEFT_REQUIRE(options.step > 0 && std::isfinite(options.step), "step must be above 0");
  WEFT_REQUIRE(options.decay > 0 && options.decay <= 1, "decay must be above 0 and at most 1");
}

std::size_t hogwild_memory(std::size_t weights, int workers, const HogwildOptions& options) {
  return SharedWeights::bytes(weights, clusters_of(workers, options));
}

HogwildResult hogwild(const RowProblem& problem, std::size_t weights, Ranks& ranks,
                      const HostPlace& place, const HogwildOptions& options) {
  check(problem.objective, options);
  WEFT_REQUIRE(problem.targets.size() == problem.rows->size(), "one target for each row");
  return Hogwild(problem, weights, ranks, place, options).run();
}

}  // namespace weft::linear

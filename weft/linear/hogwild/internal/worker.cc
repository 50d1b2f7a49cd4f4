#include "weft/linear/hogwild/internal/worker.h"

#include <thread>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/linear/data/sparse_vector.h"
#include "weft/linear/hogwild/internal/relaxed.h"
#include "weft/linear/solve/losses.h"

namespace weft::linear::internal {
namespace {

using Flag = std::atomic_ref<std::uint32_t>;

bool try_take(Flag flag) {
  return flag.load(std::memory_order_relaxed) == 0 &&
         flag.exchange(1, std::memory_order_acquire) == 0;
}

// Spins for a short time, then yields: its holder may wait for this processor.
void take(Flag flag) {
  constexpr int kSpins = 200;
  for (int i = 0; i < kSpins; ++i) {
    if (try_take(flag)) return;
  }
  const auto deadline = Deadline::in(std::chrono::minutes(1));
  while (!try_take(flag)) {
    if (deadline.passed())
      throw Error(Errc::kTimeout, "a lock of the weights was not released for a minute");
    std::this_thread::yield();
  }
}

void release(Flag flag) { flag.store(0, std::memory_order_release); }

// Holds the locks of a row. The columns ascend, so all workers take locks in the same order.
template <Locks kLocks>
class RowLocks {
 public:
  RowLocks(const SharedWeights& shared, std::span<const Entry> row) : shared_(shared), row_(row) {
    if constexpr (kLocks == Locks::kRows) take(shared_.lock());
    if constexpr (kLocks == Locks::kColumns) {
      for_each_line([&](std::size_t line) { take(shared_.lock_of_line(line)); });
    }
  }
  ~RowLocks() {
    if constexpr (kLocks == Locks::kRows) release(shared_.lock());
    if constexpr (kLocks == Locks::kColumns) {
      for_each_line([&](std::size_t line) { release(shared_.lock_of_line(line)); });
    }
  }
  RowLocks(const RowLocks&) = delete;
  RowLocks& operator=(const RowLocks&) = delete;

 private:
  template <class F>
  void for_each_line(F&& f) const {
    std::size_t last = ~std::size_t{0};
    for (const Entry& entry : row_) {
      const std::size_t line = entry.column / SharedWeights::kColumnsOfLock;
      if (line != last) f(line);
      last = line;
    }
  }

  const SharedWeights& shared_;
  std::span<const Entry> row_;
};

// x·w. Four sums, because one sum would wait for each addition.
double predict(std::span<const Entry> x, float* w) {
  float a = 0, b = 0, c = 0, d = 0;
  const Entry *at = x.data(), *const end = at + x.size();
  for (; end - at >= 4; at += 4) {
    a += at[0].value * load(w[at[0].column]);
    b += at[1].value * load(w[at[1].column]);
    c += at[2].value * load(w[at[2].column]);
    d += at[3].value * load(w[at[3].column]);
  }
  for (; at != end; ++at) a += at->value * load(w[at->column]);
  return (a + b) + (c + d);
}

template <class Kind, Locks kLocks>
void visit(const Worker& worker, const EpochOptions& options, const SharedWeights& shared) {
  constexpr std::size_t kAhead = 4, kBetween = 64;
  const auto& order = worker.order.order();
  float* const w = shared.weights(worker.cluster).data();
  const float* const shrink = options.shrink.data();
  const SparseRows& rows = *worker.rows;
  for (std::size_t k = 0; k < order.size(); ++k) {
    if (k + kAhead < order.size()) prefetch(rows.row(worker.first_row + order[k + kAhead]));
    if (worker.between && k % kBetween == kBetween - 1) worker.between(kBetween);
    const std::size_t i = worker.first_row + order[k];
    const auto row = rows.row(i);
    const RowLocks<kLocks> locks(shared, row);
    const double z = predict(row, w);
    const float slope = options.step * static_cast<float>(Kind::derivative(z, worker.targets[i]));
    for (const Entry& entry : row) {
      float& weight = w[entry.column];
      store(weight, (load(weight) - slope * entry.value) * shrink[entry.column]);
    }
  }
}

}  // namespace

void run_epoch(Worker& worker, std::uint64_t epoch, const EpochOptions& options,
               const SharedWeights& shared) {
  worker.order.make(epoch);
  with_loss(options.loss, [&](auto kind) {
    using Kind = decltype(kind);
    switch (options.locks) {
      case Locks::kNone: return visit<Kind, Locks::kNone>(worker, options, shared);
      case Locks::kRows: return visit<Kind, Locks::kRows>(worker, options, shared);
      case Locks::kColumns: return visit<Kind, Locks::kColumns>(worker, options, shared);
    }
  });
}

}  // namespace weft::linear::internal

// The center in shared memory, and rules around a center of another kind.
#include "weft/strategy/center.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "weft/comm/replicate.h"
#include "weft/strategy/strategy.h"
#include "weft/strategy/testing/rules.h"

namespace weft::strategy {
namespace center_test {

using rules_test::expect_close;
using rules_test::gradient;
using rules_test::initial;
using rules_test::kLr;
using rules_test::train;

// A center in the memory of a process, with one lock: another implementation than shared_center().
struct ProcessMemory {
  std::mutex mutex;
  std::condition_variable changed;
  at::Tensor values;
  std::vector<std::array<std::int64_t, 2>> clocks;  // by worker: added, pulled
  std::int64_t additions = 0;
};

class ProcessCenter final : public Center {
 public:
  ProcessCenter(ProcessMemory& memory, Group workers, const at::Tensor& like)
      : memory_(memory), workers_(std::move(workers)) {
    if (workers_.rank() == 0) {
      memory_.values = like.clone();
      memory_.clocks.assign(static_cast<std::size_t>(workers_.size()), {0, 0});
    }
    workers_.barrier();
  }
  std::int64_t count() const override { return memory_.values.numel(); }
  void pull(std::int64_t offset, const at::Tensor& out) override {
    const std::lock_guard lock(memory_.mutex);
    out.copy_(memory_.values.narrow(0, offset, out.numel()));
  }
  void add(std::int64_t offset, const at::Tensor& change) override {
    const std::lock_guard lock(memory_.mutex);
    memory_.values.narrow(0, offset, change.numel()).add_(change);
  }
  void advance(Clock clock, std::int64_t exchange) override {
    const std::lock_guard lock(memory_.mutex);
    mine()[static_cast<std::size_t>(clock)] = exchange;
    if (clock == Clock::kAdded) ++memory_.additions;
    memory_.changed.notify_all();
  }
  std::int64_t additions() const override {
    const std::lock_guard lock(memory_.mutex);
    return memory_.additions;
  }
  void wait_for_all(Clock clock, std::int64_t least) override {
    wait([&](const auto& one) { return one[static_cast<std::size_t>(clock)] >= least; });
  }
  void wait_for_exchanges(std::int64_t last) override {
    wait([&](const auto& one) { return one[0] == one[1] || std::max(one[0], one[1]) > last; });
  }
  void leave() override {}
  void reset(const at::Tensor* values) override {
    workers_.barrier();
    if (workers_.rank() == 0 && values != nullptr) memory_.values.copy_(*values);
    mine() = {0, 0};
    memory_.additions = 0;
    workers_.barrier();
  }
  at::Tensor snapshot() override {
    workers_.barrier();
    at::Tensor copy = memory_.values.clone();
    workers_.barrier();
    return copy;
  }
  at::Tensor in_place() override { return {}; }

 private:
  void wait(const std::function<bool(const std::array<std::int64_t, 2>&)>& is_ready) {
    std::unique_lock lock(memory_.mutex);
    const auto all = [&] {
      return std::all_of(memory_.clocks.begin(), memory_.clocks.end(), is_ready);
    };
    ASSERT_TRUE(memory_.changed.wait_for(lock, std::chrono::seconds(20), all));
  }
  std::array<std::int64_t, 2>& mine() {
    return memory_.clocks[static_cast<std::size_t>(workers_.rank())];
  }

  ProcessMemory& memory_;
  const Group workers_;
};

TEST(Center, OfAnotherKindGivesTheSameTraining) {
  for (const char* name : {"downpour", "easgd_async"}) {
    const Strategy strategy{.name = name, .period = 2, .staleness = 0};
    const auto wanted = train(3, strategy, 20);
    ProcessMemory memory;
    comm::replicate(3, [&](const Group& group) {
      at::Tensor x = initial();
      const MakeCenter make = [&](const Group& workers, const at::Tensor& like) {
        return std::make_unique<ProcessCenter>(memory, workers, like);
      };
      const auto rule = make_rule(
          strategy, {.workers = group, .world = group, .weights = {x}, .make_center = make});
      for (int step = 1; step <= 20; ++step) {
        x.sub_(gradient(x, group.rank()), kLr);
        rule->after_step({step, kLr, 0, 1});
      }
      expect_close(x, wanted.weights[static_cast<std::size_t>(group.rank())], 1e-10);
      expect_close(rule->result().weights[0], wanted.result, 1e-10);
    });
  }
}

TEST(Center, PullsAndAddsAnyRangeAndCountsWhatItMoves) {
  comm::replicate(2, [](const Group& group) {
    const auto center = shared_center(group, torch::zeros({20'000}));
    const std::uint64_t before = group.traffic().shared_bytes;
    center->add(8'000, torch::full({300}, 1.0 + group.rank()));
    EXPECT_EQ(group.traffic().shared_bytes - before, 300 * sizeof(float));
    group.barrier();
    at::Tensor seen = torch::full({500}, -1.0);
    center->pull(7'900, seen);
    EXPECT_EQ(seen[99].item<float>(), 0);
    EXPECT_EQ(seen[100].item<float>(), 3);
    EXPECT_EQ(seen[399].item<float>(), 3);
    EXPECT_EQ(seen[400].item<float>(), 0);
    EXPECT_ANY_THROW(center->pull(19'600, seen));
    EXPECT_ANY_THROW(center->add(-1, seen));
  });
}

}  // namespace center_test
}  // namespace weft::strategy

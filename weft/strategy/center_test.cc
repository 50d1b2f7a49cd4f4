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

#include "weft/base/testing/refusal.h"
#include "weft/comm/replicate.h"
#include "weft/strategy/server_center.h"
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

// Workers that share no memory. With staleness 0 the order of the additions alone differs.
TEST(ServerCenter, GivesTheSameTraining) {
  for (const char* name : {"downpour", "easgd_async"}) {
    const Strategy strategy{.name = name, .period = 2, .staleness = 0};
    const auto wanted = train(3, strategy, 20);
    comm::replicate(3, [&](const Group& group) {
      at::Tensor x = initial().to(torch::kFloat);
      const MakeCenter make = [](const Group& workers, const at::Tensor& like) {
        return server_center(workers, like);
      };
      const auto rule = make_rule(
          strategy, {.workers = group, .world = group, .weights = {x}, .make_center = make});
      for (int step = 1; step <= 20; ++step) {
        x.sub_(gradient(x.to(torch::kDouble), group.rank()), kLr);
        rule->after_step({step, kLr, 0, 1});
      }
      expect_close(x, wanted.weights[static_cast<std::size_t>(group.rank())], 1e-5);
      expect_close(rule->result().weights[0], wanted.result, 1e-5);
      // What a checkpoint has of it, and gives back.
      const at::Tensor saved = rule->state().arrays.at("center").at(0).clone();
      group.barrier();
      rule->restart();
      rule->state().arrays.at("center").at(0).copy_(saved);
      rule->restored();
      expect_close(rule->result().weights[0], saved, 1e-12);
    });
  }
}

TEST(ServerCenter, PullsAndAddsAnyRangeAndRefusesOthers) {
  comm::replicate(2, [](const Group& group) {
    const auto center = server_center(group, torch::zeros({200}));
    center->add(80, torch::full({30}, 1.0f + static_cast<float>(group.rank())));
    group.barrier();
    at::Tensor seen = torch::full({50}, -1.0f);
    center->pull(79, seen);
    EXPECT_EQ(seen[0].item<float>(), 0);
    EXPECT_EQ(seen[1].item<float>(), 3);
    EXPECT_EQ(seen[31].item<float>(), 0);
    EXPECT_ANY_THROW(center->pull(160, seen));
    const at::Tensor values = torch::arange(200).to(torch::kFloat).sqrt();
    center->reset(&values);
    EXPECT_TRUE(torch::equal(center->snapshot(), values));
    EXPECT_ANY_THROW(server_center(group, torch::zeros({4}, torch::kDouble)));
  });
}

TEST(ServerCenter, ExchangesThroughACodecAndIsReadAndSetWithoutIt) {
  comm::replicate(2, [](const Group& group) {
    const auto center = server_center(group, torch::zeros({100}), {.codec = "topk:0.1"});
    EXPECT_EQ(center->codec(), "topk:0.1");
    const at::Tensor values = torch::arange(100).to(torch::kFloat).sqrt();
    center->reset(&values);
    at::Tensor seen = torch::empty({100});
    center->read(seen);
    EXPECT_TRUE(torch::equal(seen, values));
    group.barrier();
    // Ten elements come with the first addition of each worker, the others with the next ones.
    const at::Tensor change = torch::arange(1, 101).to(torch::kFloat);
    if (group.rank() == 0) {
      center->add(0, change);
      center->read(seen);
      EXPECT_EQ((seen - values).count_nonzero().item<std::int64_t>(), 10);
      for (int i = 0; i < 9; ++i) center->add(0, torch::zeros({100}));
      center->read(seen);
      EXPECT_TRUE(torch::allclose(seen, values + change));
    }
    group.barrier();
    EXPECT_TRUE(torch::allclose(center->snapshot(), values + change));
    for (int i = 0; i < 10; ++i) center->pull(0, seen);
    EXPECT_TRUE(torch::allclose(seen, values + change));
    group.barrier();
  });
}

TEST(ServerCenter, TrainsThroughACodec) {
  for (const char* name : {"downpour", "easgd_async"}) {
    const auto wanted = train(3, {.name = name, .staleness = 0}, 200);
    comm::replicate(3, [&](const Group& group) {
      at::Tensor x = initial().to(torch::kFloat);
      const MakeCenter make = [](const Group& workers, const at::Tensor& like) {
        return server_center(workers, like, {.codec = "int8:64"});
      };
      const Strategy strategy{.name = name, .staleness = 0, .codec = "int8:64"};
      const auto rule = make_rule(
          strategy, {.workers = group, .world = group, .weights = {x}, .make_center = make});
      for (int step = 1; step <= 200; ++step) {
        x.sub_(gradient(x.to(torch::kDouble), group.rank()), kLr);
        rule->after_step({step, kLr, 0, 1});
      }
      expect_close(rule->result().weights[0].to(torch::kDouble), wanted.result, 0.02);
    });
  }
}

TEST(ServerCenter, RefusesAnotherCodecThanThatOfTheRule) {
  comm::replicate(2, [](const Group& group) {
    Part part{.workers = group, .world = group, .weights = {torch::zeros({10})}};
    const Strategy strategy{.name = "downpour", .codec = "bf16"};
    expect_refused([&] { make_rule(strategy, part); }, Errc::kBadConfig,
                   "the center is in the memory of this host");
    part.make_center = [](const Group& workers, const at::Tensor& like) {
      return server_center(workers, like);
    };
    expect_refused([&] { make_rule(strategy, part); }, Errc::kBadConfig,
                   "strategy.codec = \"bf16\", and the center's is \"none\"");
  });
}

// In memory of the host, or in messages to the server.
TEST(ServerCenter, ThatOneWorkerCannotMakeIsAnErrorOfAllWorkers) {
  comm::replicate(2, [](const Group& workers) {
    const std::string codec = workers.rank() == 0 ? "none" : "bf16";
    EXPECT_THROW(server_center(workers, at::zeros({100}), {.codec = codec}), Error);
    workers.barrier();
  });
}

TEST(ServerCenter, CountsWhatItMoves) {
  comm::replicate(2, [](const Group& group) {
    const auto center = server_center(group, torch::zeros({1000}));
    group.barrier();
    const auto bytes_of = [&](const auto& call) {
      const comm::Traffic before = group.traffic();
      call();
      const comm::Traffic after = group.traffic();
      return after.shared_bytes - before.shared_bytes + after.sent_bytes - before.sent_bytes;
    };
    at::Tensor seen = torch::zeros({1000});
    center->pull(0, seen);  // counts what came before, too
    EXPECT_EQ(bytes_of([&] { center->pull(0, seen); }), 4000U);
    EXPECT_EQ(bytes_of([&] { center->add(0, seen); }), 4000U);
    group.barrier();
  });
}

TEST(ServerCenter, EndsWithPeerLostSoonAfterItsServerIsGone) {
  comm::replicate(2, [](const Group& group) {
    auto center = server_center(group, torch::zeros({20}));  // the server is worker 0's
    group.barrier();
    if (group.rank() == 0) center.reset();
    group.barrier();
    if (group.rank() == 0) return;
    const auto start = std::chrono::steady_clock::now();
    at::Tensor seen = torch::zeros({20});
    expect_refused([&] { center->pull(0, seen); }, Errc::kPeerLost, "the center cannot be reached");
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  });
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

// Rules around a center on parameter servers, and the center itself.
#include "weft/strategy/server/server_center.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <chrono>
#include <string>

#include "weft/base/testing/refusal.h"
#include "weft/comm/replicate.h"
#include "weft/strategy/strategy.h"
#include "weft/strategy/testing/rules.h"

namespace weft::strategy {
namespace server_center_test {

using rules_test::expect_close;
using rules_test::gradient;
using rules_test::initial;
using rules_test::kLr;
using rules_test::train;

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

TEST(ServerCenter, ForgetsWhatACodecHasNotSentWhenTheRuleRestarts) {
  for (const char* name : {"downpour", "easgd_async"}) {
    comm::replicate(2, [&](const Group& group) {
      at::Tensor x = initial().to(torch::kFloat);
      const MakeCenter make = [](const Group& workers, const at::Tensor& like) {
        return server_center(workers, like, {.codec = "topk:0.1"});
      };
      const auto rule =
          make_rule({.name = name, .period = 1, .codec = "topk:0.1"},
                    {.workers = group, .world = group, .weights = {x}, .make_center = make});
      for (int step = 1; step <= 5; ++step) {
        x.sub_(gradient(x.to(torch::kDouble), group.rank()), kLr);
        rule->after_step({step, kLr, 0, 1});
      }
      rule->restart();
      const at::Tensor first = x.clone();
      for (int step = 6; step <= 25; ++step) rule->after_step({step, kLr, 0, 1});
      EXPECT_TRUE(torch::equal(x, first)) << name;
      group.barrier();  // a server ends with the rule of its rank
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

}  // namespace server_center_test
}  // namespace weft::strategy

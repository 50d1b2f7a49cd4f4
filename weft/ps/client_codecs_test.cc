// Pushes and pulls of a client through codecs, without them on request, and as differences.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "weft/base/testing/refusal.h"
#include "weft/ps/client.h"
#include "weft/ps/testing/cluster.h"

namespace weft::ps {
namespace client_codecs_test {

using namespace std::chrono_literals;
using testing::Cluster;
using ::testing::Each;
using ::testing::ElementsAre;

Options options_with(std::optional<optim::UpdateRule> rule, int staleness) {
  Options options;
  options.rule = std::move(rule);
  options.staleness = staleness;
  return options;
}

const std::vector<float> kWeight{1, 2, 3, 4, 5}, kBias{-1, 1};

std::vector<Tensor> tensors() { return {{"weight", kWeight}, {"bias", kBias}}; }

// topk:0.1 sends one element of a tensor of five. What is left of "weight" is forgotten by an exact
// push of it.
TEST(Client, PushesAndPullsWithoutTheCodecOnRequest) {
  for (const bool local : {true, false}) {
    Cluster cluster(1);
    Client client(cluster.client(0, local));
    Options options = options_with(std::nullopt, kAsync);
    options.push_codec = options.pull_codec = "topk:0.1";
    options.pull_deltas = true;
    client.define(tensors(), options);
    client.join();
    const auto push = [&](const std::vector<float>& delta, Coding coding) {
      std::copy(delta.begin(), delta.end(), client.gradient("weight").begin());
      client.wait(client.push({"weight"}, -1, coding));
    };
    push({1, 2, 3, 4, 50}, Coding::kCodec);
    client.wait(client.pull({"weight"}, Coding::kExact));
    EXPECT_THAT(client.value("weight"), ElementsAre(1, 2, 3, 4, 55));
    push({-1, -2, -3, -4, -55}, Coding::kExact);
    client.wait(client.pull({"weight"}, Coding::kExact));
    EXPECT_THAT(client.value("weight"), ElementsAre(0, 0, 0, 0, 0));
    push({0, 0, 0, 1, 0}, Coding::kCodec);
    push({0, 0, 0, 0, 0}, Coding::kCodec);
    client.wait(client.pull({"weight"}));  // all values: they were pulled without the codec
    EXPECT_THAT(client.value("weight"), ElementsAre(0, 0, 0, 1, 0));
    push({3, 0, 4, 0, 0}, Coding::kExact);
    client.wait(client.pull({"weight"}));  // the largest difference
    EXPECT_THAT(client.value("weight"), ElementsAre(0, 0, 4, 1, 0));
    client.wait(client.pull({"weight"}));
    EXPECT_THAT(client.value("weight"), ElementsAre(3, 0, 4, 1, 0));
  }
  Cluster cluster(1);
  Client client(cluster.client(0));
  Options options = options_with(std::nullopt, kAsync);
  options.pull_codec = "bf16";
  client.define(tensors(), options);
  expect_refused([&] { client.pull({}, Coding::kExact); }, Errc::kInvalidArgument,
                 "a pull without the codec needs pull_deltas");
}

// topk:0.1 sends one element of a tensor of five. The later pushes send the rest, once.
TEST(Client, KeepsWhatTheCodecHasNotSentWhenAPushIsRefused) {
  Cluster cluster(1);
  Client client(cluster.client(0));
  Options options = options_with(std::nullopt, kAsync);
  options.push_codec = "topk:0.1";
  client.define(tensors(), options);
  const auto push = [&](const std::vector<float>& delta, Coding coding = Coding::kCodec) {
    std::copy(delta.begin(), delta.end(), client.gradient("weight").begin());
    return client.push({"weight"}, -1, coding);
  };
  const auto expect_weight = [&](const std::vector<float>& expected) {
    client.wait(client.pull());
    EXPECT_THAT(client.value("weight"), ::testing::ElementsAreArray(expected));
  };
  expect_refused(
      [&] {
        client.wait(push({1, 2, 3, 4, 50}));
      },
      Errc::kInvalidArgument, "has not joined");
  client.join();
  client.wait(push({1, 2, 3, 4, 50}));
  client.wait(push({0, 0, 0, 0, 0}));
  expect_weight({1, 2, 3, 8, 55});
  client.leave();
  const Client::Ticket coded = push({9, 0, 0, 0, 0}), exact = push({0, 0, 0, 0, 9}, Coding::kExact);
  for (const Client::Ticket ticket : {coded, exact})
    expect_refused([&] { client.wait(ticket); }, Errc::kAborted, "does not count any more");
  client.join();
  client.wait(push({0, 0, 0, 0, 0}));
  expect_weight({1, 2, 6, 8, 55});
  client.wait(push({0, 0, 0, 0, 0}));
  expect_weight({1, 4, 6, 8, 55});
  client.wait(push({0, 0, 0, 0, 0}));
  expect_weight({2, 4, 6, 8, 55});
}

// The values of an exact pull are those that the worker has, also where it else pulls differences.
TEST(Client, CompensatesTheDelaySinceItsPullWithoutTheCodec) {
  Cluster cluster(1);
  Options options = options_with(kernels::Sgd{.lr = 1}, kAsync);
  options.delay_compensation = 1;
  options.pull_deltas = true;
  Client one(cluster.client(0)), other(cluster.client(1));
  for (Client* const client : {&one, &other}) {
    client->define(tensors(), options);
    client->join();
  }
  const auto push = [](Client& client, float gradient) {
    for (float& value : client.gradient("bias")) value = gradient;
    client.wait(client.push({"bias"}));
  };
  push(other, -10);
  one.wait(one.pull({}, Coding::kExact));
  EXPECT_THAT(one.value("bias"), ElementsAre(9, 11));
  push(one, 1);
  one.wait(one.pull({}, Coding::kExact));
  EXPECT_THAT(one.value("bias"), ElementsAre(8, 10));
}

// A pull is a command of the client, too: the turns of randomk are those of each direction alone.
TEST(Client, PushesAndPullsEachElementInItsTurnThroughRandomK) {
  const std::vector<float> zeros(1000, 0.0f);
  for (const bool pushes : {true, false}) {
    Cluster cluster(1);
    Options options = options_with(std::nullopt, kAsync);
    options.pull_deltas = true;
    (pushes ? options.push_codec : options.pull_codec) = "randomk:0.1";
    Client client(cluster.client(0));
    client.define({{"weight", zeros}}, options);
    client.join();
    for (int step = 0; step < 40; ++step) {
      for (float& value : client.gradient("weight")) value = 1;
      client.wait(client.push());
      client.wait(client.pull());
    }
    EXPECT_THAT(client.value("weight"), Each(::testing::Ge(31.0f)));
  }
}

// A pull of values and one of differences go to the same shard. The first waits for the slower
// worker, and the second for the first.
TEST(Client, PullsValuesAndDifferencesTogetherWhileItWaitsForASlowerWorker) {
  Cluster cluster(1);
  Options options = options_with(std::nullopt, kSync);
  options.pull_deltas = true;
  Client fast(cluster.client(0)), slow(cluster.client(1));
  for (Client* const client : {&fast, &slow}) {
    client->define(tensors(), options);
    client->join();
    for (const char* tensor : {"weight", "bias"})
      for (float& value : client->gradient(tensor)) value = 1;
  }
  fast.wait(fast.pull({"weight"}));
  fast.wait(fast.push());
  const Client::Ticket both = fast.pull();
  expect_refused([&] { fast.wait(both, Deadline::in(50ms)); }, Errc::kTimeout,
                 "it may wait for a slower worker");
  slow.wait(slow.push());
  fast.wait(both, Deadline::in(5s));
  EXPECT_THAT(fast.value("weight"), ElementsAre(3, 4, 5, 6, 7));
  EXPECT_THAT(fast.value("bias"), ElementsAre(1, 3));
  fast.wait(fast.push());
}

}  // namespace client_codecs_test
}  // namespace weft::ps

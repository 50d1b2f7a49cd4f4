// When a server takes its neighbors in a chain as lost.
#include <gtest/gtest.h>

#include "weft/ps/internal/neighbors.h"
#include "weft/ps/testing/commands.h"

namespace weft::ps {
namespace neighbors_test {

using namespace std::chrono_literals;
using internal::ChainMessage;
using internal::Neighbors;
using internal::Replica;
using Time = Neighbors::Clock::time_point;

constexpr auto kTimeout = 700ms;
const Time kStart(1h);
const Member kFirst{0, 10}, kSecond{1, 11};

// Two servers without a network.
struct Chain {
  explicit Chain(const View& view) {
    for (Replica* const one : {&first, &second}) one->adopt(view);
    neighbors.adopt(first, kStart);
  }
  static void deliver(Replica& from, Replica& to) {
    for (const Replica::Message& message : from.take_messages())
      to.receive(internal::decode_chain_message(message.bytes));
  }
  // The first server hears what the second one says.
  void hear(Time now) {
    for (const Replica::Message& message : second.take_messages())
      neighbors.hear(first, internal::decode_chain_message(message.bytes), now);
  }
  bool second_is_silent(Time now) const { return neighbors.next_is_silent(first, now, kTimeout); }

  Replica first{Replica::Settings{.me = kFirst}}, second{Replica::Settings{.me = kSecond}};
  Neighbors neighbors;  // of the first
};

const View kBoth{1, {kFirst, kSecond}, std::nullopt};

TEST(Neighbors, AreSilentAfterTheTimeoutWithoutASignOfLife) {
  Chain chain(kBoth);
  EXPECT_FALSE(chain.neighbors.previous_is_silent(kStart + 1h, kTimeout)) << "there is none";
  EXPECT_FALSE(chain.second_is_silent(kStart + kTimeout));
  EXPECT_TRUE(chain.second_is_silent(kStart + kTimeout + 1ms));
  chain.second.tick();
  chain.hear(kStart + kTimeout);
  EXPECT_FALSE(chain.second_is_silent(kStart + 2 * kTimeout));
  EXPECT_TRUE(chain.second_is_silent(kStart + 2 * kTimeout + 1ms));
}

TEST(Neighbors, AreNotSilentInAPauseThatTheyHaveAnnounced) {
  Chain chain(kBoth);
  chain.hear(kStart);
  chain.second.announce_pause(3s);
  chain.hear(kStart);
  EXPECT_FALSE(chain.second_is_silent(kStart + 3s + kTimeout));
  EXPECT_TRUE(chain.second_is_silent(kStart + 3s + kTimeout + 1ms));
  // The next sign of life ends it.
  chain.second.tick();
  chain.hear(kStart + 1s);
  EXPECT_TRUE(chain.second_is_silent(kStart + 1s + kTimeout + 1ms));

  Neighbors of_second;
  of_second.adopt(chain.second, kStart);
  chain.first.take_messages();
  chain.first.announce_pause(3s);
  const auto messages = chain.first.take_messages();
  ASSERT_EQ(messages.size(), 1u);
  of_second.hear(chain.second, internal::decode_chain_message(messages[0].bytes), kStart);
  EXPECT_FALSE(of_second.previous_is_silent(kStart + 3s + kTimeout, kTimeout));
  EXPECT_TRUE(of_second.previous_is_silent(kStart + 3s + kTimeout + 1ms, kTimeout));
}

TEST(Neighbors, AreNotSilentWhileNobodyListens) {
  Chain chain(kBoth);
  chain.neighbors.forgive(5s, kStart + 5s);
  EXPECT_FALSE(chain.second_is_silent(kStart + 5s + kTimeout));
  EXPECT_TRUE(chain.second_is_silent(kStart + 5s + kTimeout + 1ms));
  // A sign of life that came in this time counts from its end, not from later.
  chain.second.tick();
  chain.hear(kStart + 8s);
  chain.neighbors.forgive(5s, kStart + 9s);
  EXPECT_TRUE(chain.second_is_silent(kStart + 9s + kTimeout + 1ms));
}

TEST(Neighbors, HaveLongerWhileTheyReceiveTheState) {
  Chain chain({1, {kFirst}, kSecond});
  testing::Commands worker(1, 0);
  chain.first.request(1, worker.define({}, {{"w", std::vector<float>(1000)}}));
  const auto acks = chain.second.take_messages();
  ASSERT_FALSE(acks.empty());
  const ChainMessage ack = internal::decode_chain_message(acks[0].bytes);
  EXPECT_GE(chain.first.work_of(ack), 4000u) << "it copies the state";
  chain.first.receive(ack);
  EXPECT_EQ(chain.first.work_of(ack), 0u);
  EXPECT_TRUE(chain.first.next_receives_state());
  EXPECT_FALSE(chain.second_is_silent(kStart + 30s));
  EXPECT_TRUE(chain.second_is_silent(kStart + 30s + 1ms));
  for (int piece = 0; piece < 10 && chain.first.next_receives_state(); ++piece) {
    Chain::deliver(chain.first, chain.second);
    Chain::deliver(chain.second, chain.first);
  }
  EXPECT_FALSE(chain.first.next_receives_state());
  EXPECT_TRUE(chain.second_is_silent(kStart + kTimeout + 1ms));
}

TEST(Neighbors, AreToldOfTheWorkOfALargeRequest) {
  Chain chain(kBoth);
  testing::Commands worker(1, 0);
  const internal::Request define = worker.define({}, {{"w", std::vector<float>(1000)}});
  EXPECT_GE(chain.first.work_of(define), 4000u);
  chain.first.request(1, define);
  internal::Request save;
  save.op = internal::Op::kSave;
  EXPECT_GE(chain.first.work_of(save), 4000u);
  save.version = 1;
  EXPECT_EQ(chain.first.work_of(save), 0u);
}

// A command of 10 MB, which goes again after 3 ticks and one for each 4 MB.
TEST(Neighbors, GetALargeCommandAgainOnlyAfterTheTimeThatItTakes) {
  Chain chain(kBoth);
  Chain::deliver(chain.second, chain.first);
  testing::Commands worker(1, 0);
  chain.first.request(1, worker.define({}, {{"w", std::vector<float>(2'500'000)}}));
  chain.first.take_messages();  // it is lost
  for (int tick = 1; tick <= 5; ++tick) {
    chain.first.tick();
    bool is_sent = false;
    for (const Replica::Message& message : chain.first.take_messages())
      is_sent |= internal::decode_chain_message(message.bytes).kind == ChainMessage::Kind::kEntry;
    EXPECT_EQ(is_sent, tick == 5) << tick;
  }
}

}  // namespace neighbors_test
}  // namespace weft::ps

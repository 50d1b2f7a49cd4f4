// Reads of clients: which answer belongs to which request.
#include "weft/store/internal/client_requests.h"

#include <gtest/gtest.h>

#include "weft/store/internal/node.h"

namespace weft::store {
namespace client_requests_test {

using namespace internal;
using namespace std::chrono_literals;

constexpr ClientRequests::Token kToken = 7;
constexpr ClientRequests::Leadership kLeadership = 1;

Request request(Op op, std::uint64_t sequence) {
  return {.op = op, .client = 5, .sequence = sequence, .key = "key", .wait_ms = 100};
}

KeyValues state_with_a_key() {
  KeyValues state;
  state.apply({.op = Op::kSet, .client = 6, .sequence = 1, .key = "key", .value = "1"});
  return state;
}

TEST(ClientRequests, AnswerOfAnOldReadDoesNotEndALaterWait) {
  const KeyValues state = state_with_a_key();
  ClientRequests requests(0);
  requests.add(kToken, request(Op::kGet, 1), state, 0ms);
  const auto round = requests.begin_reads(kLeadership, 0ms);
  ASSERT_TRUE(round);
  requests.expire(100ms, "late");
  Request wait = request(Op::kWait, 2);
  wait.revision = state.revision();
  requests.add(kToken, wait, state, 100ms);
  requests.set_index(*round, 1);
  requests.end_reads(state, 1);
  const auto answers = requests.take_answers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].response.status, Status::kTimeout);
  EXPECT_EQ(answers[0].response.sequence, 1u);
}

TEST(ClientRequests, IndexOfAnOldReadIsNotThatOfALaterOne) {
  const KeyValues state = state_with_a_key();
  ClientRequests requests(0);
  requests.add(kToken, request(Op::kGet, 1), state, 0ms);
  const auto old = requests.begin_reads(kLeadership, 0ms);
  requests.forget(kToken);
  requests.add(kToken, request(Op::kGet, 2), state, 0ms);
  const auto round = requests.begin_reads(kLeadership, 0ms);
  ASSERT_TRUE(old && round);
  requests.set_index(*old, 1);
  requests.end_reads(state, 1);
  EXPECT_TRUE(requests.take_answers().empty());
  requests.set_index(*round, 1);
  requests.end_reads(state, 1);
  const auto answers = requests.take_answers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].response.sequence, 2u);
  EXPECT_EQ(answers[0].response.value->bytes, "1");
}

// Member 2 of a store with two members; member 1 leads.
class Follower {
 public:
  explicit Follower(std::uint64_t seed)
      : node_({.node = 2, .founders = 2, .address = "host", .seed = seed}, saved(), 0ms) {
    Message heartbeat = message(Message::Type::kAppend);
    heartbeat.index = heartbeat.log_term = heartbeat.commit = 1;
    node_.receive(1, heartbeat);
    node_.take();
  }

  // The round of a new read.
  std::uint64_t begin_read() {
    node_.request(kToken, request(Op::kGet, 1));
    for (const Node::ToNode& sent : node_.take().messages) {
      if (sent.message.type == Message::Type::kRead) return sent.message.round;
    }
    ADD_FAILURE() << "the leader is not asked";
    return 0;
  }
  // True if the leader's answer to this round answers a read.
  bool is_answered_by(std::uint64_t round) {
    Message reply = message(Message::Type::kReadReply);
    reply.round = round;
    reply.index = 1;
    node_.receive(1, reply);
    return !node_.take().answers.empty();
  }

 private:
  static Saved saved() {
    Configuration configuration;
    configuration.members = {{1, 1, 1, "host"}, {2, 2, 2, "host"}};
    configuration.voters = {1, 2};
    configuration.next_id = 3;
    return {.identity = Identity{.cluster = 1, .me = 2, .incarnation = 2, .added = 1},
            .vote = {1, 0},
            .log = Log({1, 1, configuration, KeyValues().snapshot()})};
  }
  static Message message(Message::Type type) {
    Message made;
    made.type = type;
    made.cluster = 1;
    made.from = 1;
    made.to = 2;
    made.term = 1;
    return made;
  }

  Node node_;
};

TEST(ClientRequests, AnswersToAFormerProcessOfTheNodeAreNotTaken) {
  const std::uint64_t old = Follower(1).begin_read();
  Follower again(2);
  const std::uint64_t round = again.begin_read();
  EXPECT_FALSE(again.is_answered_by(old));
  EXPECT_TRUE(again.is_answered_by(round));
}

}  // namespace client_requests_test
}  // namespace weft::store

// Rules of the consensus that random faults rarely reach, message by message.
#include "weft/store/internal/raft.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::store {
namespace raft_test {

using namespace internal;
using namespace std::chrono_literals;
using Type = Message::Type;

constexpr std::uint64_t kCluster = 1;

Configuration voters(MemberId count) {
  Configuration configuration;
  for (MemberId id = 1; id <= count; ++id) {
    configuration.members.push_back({id, static_cast<std::uint32_t>(id), id, "host"});
    configuration.voters.push_back(id);
  }
  configuration.next_id = count + 1;
  return configuration;
}

Raft make(MemberId me, MemberId count, Vote vote = {1, 0}) {
  return Raft({.me = me, .cluster = kCluster, .seed = me}, vote, Log({1, 1, voters(count), ""}));
}

Message message(Type type, MemberId from, MemberId to, Term term) {
  Message made;
  made.type = type;
  made.cluster = kCluster;
  made.from = from;
  made.to = to;
  made.term = term;
  return made;
}

// The messages of this type that the member sends.
std::vector<Message> sent(Raft& raft, Type type) {
  raft.flush();
  std::vector<Message> all = raft.take_messages();
  std::erase_if(all, [&](const Message& one) { return one.type != type; });
  return all;
}

Message vote_reply(MemberId from, const Raft& raft) {
  Message reply = message(Type::kVoteReply, from, raft.options().me, raft.term());
  reply.accepted = true;
  return reply;
}

Message append_reply(MemberId from, const Raft& raft, Index index, std::uint64_t round = 0) {
  Message reply = message(Type::kAppendReply, from, raft.options().me, raft.term());
  reply.accepted = true;
  reply.index = index;
  reply.round = round;
  return reply;
}

// A leader of 3 members.
Raft leader() {
  Raft raft = make(1, 3);
  raft.campaign();
  raft.receive(vote_reply(2, raft));
  EXPECT_TRUE(raft.leads());
  return raft;
}

TEST(Raft, LeadsWithTheVotesOfAMajorityOnly) {
  Raft raft = make(1, 5);
  raft.campaign();
  EXPECT_EQ(sent(raft, Type::kVote).size(), 4u);
  raft.receive(vote_reply(2, raft));
  raft.receive(vote_reply(2, raft));  // the same vote again
  EXPECT_FALSE(raft.leads());
  raft.receive(vote_reply(3, raft));
  EXPECT_TRUE(raft.leads());
}

TEST(Raft, VotesOnceATermAlsoAfterItsProcessWasReplaced) {
  Raft raft = make(1, 3);
  Message ask = message(Type::kVote, 2, 1, 5);
  ask.index = 1;
  ask.log_term = 1;
  raft.receive(ask);
  EXPECT_TRUE(raft.take_messages().back().accepted);
  EXPECT_TRUE(raft.take_unsaved().vote);  // written before the vote is sent
  Raft again = make(1, 3, raft.vote());
  ask.from = 3;
  again.receive(ask);
  EXPECT_FALSE(again.take_messages().back().accepted);
}

TEST(Raft, DoesNotVoteForACandidateWithAnOlderLog) {
  Raft raft = leader();  // has an entry of term 2
  Message ask = message(Type::kVote, 2, 1, 9);
  ask.index = 100;
  ask.log_term = 1;
  raft.take_messages();
  raft.receive(ask);
  EXPECT_FALSE(raft.take_messages().back().accepted);
  EXPECT_EQ(raft.term(), 9u);
}

// Figure 8 of the Raft paper: an entry of an earlier term that a majority has may still be
// replaced, so it counts as committed only with an entry of the leader's own term.
TEST(Raft, DoesNotCommitAnEntryOfAnEarlierTermByCountingItsCopies) {
  Raft raft = make(1, 3);
  Message append = message(Type::kAppend, 2, 1, 2);
  append.index = 1;
  append.log_term = 1;
  append.entries = {{2, LogEntry::Kind::kCommand, "old"}};
  raft.receive(append);
  raft.campaign();
  raft.receive(vote_reply(3, raft));
  ASSERT_TRUE(raft.leads());
  ASSERT_EQ(raft.log().last(), 3u);  // the old entry, and one of the new term
  raft.receive(append_reply(3, raft, 2));
  raft.flush();
  EXPECT_EQ(raft.commit(), 1u);
  raft.receive(append_reply(3, raft, 3));
  raft.flush();
  EXPECT_EQ(raft.commit(), 3u);
}

TEST(Raft, AnswersAReadOnlyAfterAQuorumHasConfirmedThatItStillLeads) {
  Raft raft = leader();
  raft.read(7);
  raft.flush();
  EXPECT_TRUE(raft.take_reads().empty());  // no entry of its term is committed
  raft.receive(append_reply(2, raft, raft.log().last()));
  const auto appends = sent(raft, Type::kAppend);
  EXPECT_TRUE(raft.take_reads().empty());
  ASSERT_FALSE(appends.empty());
  raft.receive(append_reply(2, raft, raft.log().last(), appends.back().round - 1));
  raft.flush();
  EXPECT_TRUE(raft.take_reads().empty());  // the answer to an earlier round
  raft.receive(append_reply(2, raft, raft.log().last(), appends.back().round));
  raft.flush();
  const auto reads = raft.take_reads();
  ASSERT_EQ(reads.size(), 1u);
  EXPECT_EQ(reads[0].round, 7u);
  EXPECT_EQ(reads[0].index, raft.commit());
}

TEST(Raft, StepsDownWhenItHearsNoQuorum) {
  Raft raft = leader();
  for (Time now = 0ms; now < 2s; now += 50ms) raft.advance(now);
  EXPECT_FALSE(raft.leads());
}

TEST(Raft, IsNotDisturbedByAMemberThatReturnsFromAPartition) {
  Raft raft = leader();
  Message ask = message(Type::kPreVote, 3, 1, 50);
  ask.index = 100;
  ask.log_term = 40;
  raft.take_messages();
  raft.receive(ask);
  EXPECT_TRUE(raft.leads());
  EXPECT_FALSE(raft.take_messages().back().accepted);
}

TEST(Raft, ChangesItsMembersOnlyWhenAnEntryOfItsTermIsCommitted) {
  Raft raft = leader();
  EXPECT_FALSE(raft.change(voters(4)));
  raft.receive(append_reply(2, raft, raft.log().last()));
  raft.flush();
  EXPECT_TRUE(raft.change(voters(4)));
  EXPECT_TRUE(raft.log().configuration().is_joint());
  EXPECT_FALSE(raft.change(voters(5)));  // one after the other
}

TEST(Raft, SendsASnapshotInPartsToAMemberThatLacksEntries) {
  Raft source = make(1, 1);
  source.campaign();
  const std::string state(700'000, 'x');
  source.flush();
  source.compact({source.commit(), source.term(), voters(1), state});
  Configuration two = voters(2);
  two.voters = {1};
  ASSERT_TRUE(source.change(two));
  Raft target({.me = 2, .cluster = kCluster}, {}, Log(Snapshot{}));
  // Until the newcomer has everything; a lost message costs time only.
  for (Time now = 0ms; now < 10s && target.commit() < source.commit(); now += 10ms) {
    source.advance(now);
    target.advance(now);
    source.flush();
    for (const Message& one : source.take_messages()) {
      EXPECT_LT(one.data.size(), 300'000u);
      if (now != 70ms) target.receive(one);
    }
    for (const Message& one : target.take_messages()) source.receive(one);
  }
  EXPECT_EQ(target.commit(), source.commit());
  EXPECT_EQ(target.log().snapshot().state, state);
}

}  // namespace raft_test
}  // namespace weft::store

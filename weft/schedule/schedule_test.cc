// The property test: every algorithm is proved for every collective that it supports, over worlds,
// lengths and roots. Other tests check that the proof, make() and the parsers reject faulty input.
#include "weft/schedule/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/base/error.h"
#include "weft/schedule/proof.h"

namespace weft::schedule {
namespace schedule_test {

using ::testing::HasSubstr;

bool is_rooted(Collective c) {
  return c == Collective::kBroadcast || c == Collective::kReduce || c == Collective::kGather ||
         c == Collective::kScatter;
}

std::string text(const Request& q) {
  return std::string(to_string(q.algorithm)) + " " + to_string(q.collective) + " of " +
         std::to_string(q.count) + " over " + std::to_string(q.world) + " from root " +
         std::to_string(q.root);
}

std::vector<std::int64_t> counts(Collective collective, int world) {
  if (collective == Collective::kBarrier) return {0};
  if (world > 33) return {world / 2 + 1, 3 * world + 1};
  // No elements, fewer than ranks, one per rank, with a remainder, enough for several pipelined
  // blocks.
  return {0, 1, world - 1, world, 2 * world + 1, 100'003};
}

std::vector<int> roots(Collective collective, int world) {
  if (!is_rooted(collective) || world == 1) return {0};
  return world == 2 ? std::vector{0, 1} : std::vector{0, world / 2, world - 1};
}

void prove_everywhere(Algorithm algorithm, Collective collective, const std::vector<int>& worlds) {
  for (const int world : worlds) {
    for (const std::int64_t count : counts(collective, world)) {
      for (const int root : roots(collective, world)) {
        const Request q{collective, algorithm, 0, world, root, count};
        ASSERT_NO_THROW(prove(q)) << text(q);
      }
    }
  }
}

std::vector<int> small_worlds() {
  std::vector<int> worlds;
  for (int world = 1; world <= 33; ++world) worlds.push_back(world);
  return worlds;
}

void prove_algorithm(Algorithm algorithm, const std::vector<int>& worlds) {
  int proved = 0;
  for (const Collective collective : collectives()) {
    if (!supports(algorithm, collective)) continue;
    prove_everywhere(algorithm, collective, worlds);
    ++proved;
  }
  EXPECT_GE(proved, 1);
}

class EveryAlgorithm : public ::testing::TestWithParam<Algorithm> {};

TEST_P(EveryAlgorithm, UsesEachContributionExactlyOnceAtThePromisedCost) {
  prove_algorithm(GetParam(), small_worlds());
}
TEST_P(EveryAlgorithm, DoesSoInLargeWorlds) { prove_algorithm(GetParam(), {64, 100, 128}); }

INSTANTIATE_TEST_SUITE_P(All, EveryAlgorithm,
                         ::testing::ValuesIn(algorithms().begin(), algorithms().end()),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST(Schedules, OfferSeveralAlgorithmsForEveryCollective) {
  for (const Collective collective : collectives()) {
    const auto able = std::count_if(algorithms().begin(), algorithms().end(),
                                    [&](Algorithm a) { return supports(a, collective); });
    EXPECT_GE(able, 3) << to_string(collective);
  }
}

TEST(Schedules, CopyTheInputIfThereIsOneRank) {
  const Schedule alone = make({Collective::kAllToAll, Algorithm::kSharded, 0, 1, 0, 5});
  ASSERT_EQ(alone.steps.size(), 1u);
  EXPECT_EQ(alone.steps[0].action, Action::kCopy);
  EXPECT_EQ(alone.steps[0].count, 5);
}

// Patarasuk and Yuan's lower bound for all-reduce, 2n(W-1)/W elements. Ring, halving-doubling and
// sharded reach it if chunks have equal sizes.
TEST(Schedules, OfBandwidthOptimalAlgorithmsSendTheLowerBound) {
  for (const Algorithm algorithm :
       {Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kSharded}) {
    EXPECT_EQ(cost({Collective::kAllReduce, algorithm, 0, 8, 0, 800}).sent, 2 * 800 * 7 / 8)
        << to_string(algorithm);
  }
}

TEST(Schedules, OfTreesAndDoublingTakeLogarithmicallyManyRounds) {
  EXPECT_EQ(cost({Collective::kAllReduce, Algorithm::kRing, 0, 64, 0, 64}).rounds, 126);
  EXPECT_EQ(cost({Collective::kAllReduce, Algorithm::kRecursiveDoubling, 0, 64, 0, 64}).rounds, 6);
  EXPECT_EQ(cost({Collective::kAllReduce, Algorithm::kHalvingDoubling, 0, 64, 0, 64}).rounds, 12);
  EXPECT_EQ(cost({Collective::kAllReduce, Algorithm::kDoubleBinaryTree, 0, 64, 0, 64}).rounds, 12);
  EXPECT_EQ(cost({Collective::kBroadcast, Algorithm::kBinomial, 0, 64, 0, 64}).rounds, 6);
  EXPECT_EQ(cost({Collective::kBarrier, Algorithm::kRecursiveDoubling, 0, 100, 0, 0}).rounds, 7);
}

// The figures of Wilkins and others 2023: ceil(log_k W) rounds, where k = 2 is the binomial tree.
TEST(Knomial, TakesFewerRoundsAndSendsMoreAsTheRadixGrows) {
  const auto tree = [](int world, int radix) {
    return cost({.collective = Collective::kBroadcast,
                 .algorithm = Algorithm::kKnomial,
                 .world = world,
                 .count = 10,
                 .radix = radix});
  };
  EXPECT_EQ(tree(64, 2), (Cost{6, 60}));
  EXPECT_EQ(tree(64, 4), (Cost{3, 90}));
  EXPECT_EQ(tree(64, 8), (Cost{2, 140}));
  EXPECT_EQ(tree(64, 64), (Cost{1, 630}));
  EXPECT_EQ(tree(65, 8), (Cost{3, 150}));
  EXPECT_EQ(tree(64, 2), cost({Collective::kBroadcast, Algorithm::kBinomial, 0, 64, 0, 10}));
}

TEST(Knomial, IsRightForEveryRadix) {
  for (const int radix : {2, 3, 5, 8, 100}) {
    for (int world = 1; world <= 28; ++world) {
      for (const Collective collective : collectives()) {
        if (!supports(Algorithm::kKnomial, collective)) continue;
        Request q{collective, Algorithm::kKnomial, 0,
                  world,      world / 2,           collective == Collective::kBarrier ? 0 : 3};
        q.radix = radix;
        ASSERT_NO_THROW(prove(q)) << text(q) << " radix " << radix;
      }
    }
  }
}

TEST(Chain, TakesOneRoundMoreForEachBlock) {
  Request q{.collective = Collective::kBroadcast,
            .algorithm = Algorithm::kChain,
            .world = 6,
            .root = 2,
            .count = 100};
  for (const auto& [chunk, blocks] :
       std::map<std::int64_t, int>{{100, 1}, {50, 2}, {33, 4}, {1, 100}}) {
    q.chunk = chunk;
    for (const Collective collective : {Collective::kBroadcast, Collective::kReduce}) {
      q.collective = collective;
      EXPECT_EQ(cost(q), (Cost{6 + blocks - 2, 100}));
      ASSERT_NO_THROW(prove(q)) << text(q) << " in blocks of " << chunk;
    }
  }
}

TEST(Schedules, RefuseInvalidRequests) {
  const Request good{Collective::kBroadcast, Algorithm::kChain, 0, 4, 0, 8};
  const auto bad = [&](auto&& change) {
    Request q = good;
    change(q);
    try {
      make(q);
    } catch (const Error& error) {
      return error.code() == Errc::kInvalidArgument;
    }
    return false;
  };
  EXPECT_TRUE(bad([](Request& q) { q.rank = 4; }));
  EXPECT_TRUE(bad([](Request& q) { q.rank = -1; }));
  EXPECT_TRUE(bad([](Request& q) { q.root = 4; }));
  EXPECT_TRUE(bad([](Request& q) { q.count = -1; }));
  EXPECT_TRUE(bad([](Request& q) { q.world = 0; }));
  EXPECT_TRUE(bad([](Request& q) { q.collective = Collective::kBarrier; }));
  EXPECT_TRUE(bad([](Request& q) { q = {Collective::kBarrier, Algorithm::kDirect, 0, 4, 0, 1}; }));
  EXPECT_TRUE(bad([](Request& q) { q.chunk = -1; }));
  EXPECT_TRUE(bad([](Request& q) { q.radix = 1; }));
  EXPECT_TRUE(bad([](Request& q) { q.topology = std::make_shared<Topology>(Topology::flat(3)); }));
  EXPECT_TRUE(bad([](Request& q) {
    q = {.algorithm = Algorithm::kHierarchical,
         .world = 4,
         .count = 8,
         .across = Algorithm::kDirect};
  }));
  EXPECT_TRUE(bad([](Request& q) {
    q = {.algorithm = Algorithm::kHierarchical,
         .world = 4,
         .count = 8,
         .across = Algorithm::kBinomial};
  }));
  EXPECT_FALSE(bad([](Request&) {}));
}

TEST(Names, AreParsedBack) {
  for (const Collective collective : collectives())
    EXPECT_EQ(parse_collective(to_string(collective)), collective);
  for (const Algorithm algorithm : algorithms())
    EXPECT_EQ(parse_algorithm(to_string(algorithm)), algorithm);
}

TEST(Names, SimilarToAnUnknownOneAreSuggested) {
  EXPECT_THAT([] { parse_algorithm("halfing_doubling"); },
              ::testing::ThrowsMessage<Error>(HasSubstr("did you mean 'halving_doubling'")));
  EXPECT_THAT([] { parse_collective("allreduce"); },
              ::testing::ThrowsMessage<Error>(HasSubstr("did you mean 'all_reduce'")));
}

// Sanders, Speck, Träff 2009: no rank except the source is an inner node of both trees. So no such
// rank has children in both.
TEST(DoubleBinaryTree, HasNoRankInsideBothTrees) {
  for (int world = 2; world <= 70; ++world) {
    for (int rank = 1; rank < world; ++rank) {
      const Schedule schedule =
          make({Collective::kBroadcast, Algorithm::kDoubleBinaryTree, rank, world, 0, 2});
      bool inside[2] = {false, false};
      for (const Step& step : schedule.steps) {
        if (step.action == Action::kSend) inside[step.src] = true;
      }
      EXPECT_FALSE(inside[0] && inside[1]) << "rank " << rank << " of " << world;
    }
  }
}

// Each of these tests breaks one property of a correct set of schedules, and the proof must find
// it.
class Proof : public ::testing::Test {
 protected:
  static std::vector<Schedule> all(const Request& request) {
    std::vector<Schedule> schedules;
    Request own = request;
    for (own.rank = 0; own.rank < own.world; ++own.rank) schedules.push_back(make(own));
    return schedules;
  }
  static Step& find(std::vector<Schedule>& schedules, int rank, Action action) {
    auto& steps = schedules[rank].steps;
    return *std::find_if(steps.begin(), steps.end(),
                         [&](const Step& step) { return step.action == action; });
  }
  static void remove(std::vector<Schedule>& schedules, int rank, Action action) {
    auto& steps = schedules[rank].steps;
    steps.erase(std::find_if(steps.begin(), steps.end(),
                             [&](const Step& step) { return step.action == action; }));
  }
  static std::string fault(const Request& request,
                           const std::function<void(std::vector<Schedule>&)>& damage,
                           bool same_array = false) {
    std::vector<Schedule> schedules = all(request);
    prove(request, schedules, same_array);
    damage(schedules);
    try {
      prove(request, schedules, same_array);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kInternal);
      return error.what();
    }
    return "";
  }
  const Request ring_{Collective::kAllReduce, Algorithm::kRing, 0, 5, 0, 12};
  const Request direct_{Collective::kAllReduce, Algorithm::kDirect, 0, 5, 0, 12};
};

TEST_F(Proof, FindsAMessageWithoutAReceiver) {
  EXPECT_THAT(fault(ring_, [](auto& s) { remove(s, 2, Action::kRecv); }),
              HasSubstr("rank 2 does not receive"));
}
TEST_F(Proof, FindsAReceiveThatWaitsForEver) {
  EXPECT_THAT(fault(ring_, [](auto& s) { remove(s, 2, Action::kSend); }),
              HasSubstr("rank 3, round 1: waits for a message"));
}
TEST_F(Proof, FindsMessagesOfDifferentLengths) {
  EXPECT_THAT(fault(ring_, [](auto& s) { find(s, 3, Action::kRecvReduce).count -= 1; }),
              HasSubstr("expects"));
}
TEST_F(Proof, FindsAContributionThatCountsTwice) {
  const auto twice = [](auto& s) {
    s[4].steps.insert(s[4].steps.begin() + 1,
                      {Action::kReduce, 0, -1, Buffer::kInput, Buffer::kOutput, 0, 0, 1});
  };
  EXPECT_THAT(fault(ring_, twice), HasSubstr("counted twice"));
}
TEST_F(Proof, FindsAContributionThatIsMissing) {
  const auto replace = [](auto& s) { find(s, 1, Action::kRecvReduce).action = Action::kRecv; };
  EXPECT_THAT(fault(ring_, replace), HasSubstr("contributions"));
}
TEST_F(Proof, FindsASumOfElementsFromDifferentPlaces) {
  const Request q{Collective::kReduce, Algorithm::kBinomial, 0, 2, 0, 4};
  const auto shift = [](auto& s) {
    find(s, 1, Action::kSend) = {Action::kSend, 1, 0, Buffer::kInput, Buffer::kOutput, 1, 0, 3};
    find(s, 0, Action::kRecvReduce).count = 3;
  };
  EXPECT_THAT(fault(q, shift), HasSubstr("is combined with element"));
}
TEST_F(Proof, FindsABlockAtTheWrongPlace) {
  const Request q{Collective::kAllToAll, Algorithm::kSharded, 0, 3, 0, 4};
  EXPECT_THAT(fault(q, [](auto& s) { find(s, 1, Action::kSend).src = 0; }),
              HasSubstr("wrong elements"));
}
TEST_F(Proof, FindsASendOfUnwrittenMemory) {
  const Request q{Collective::kAllGather, Algorithm::kRing, 0, 4, 0, 3};
  EXPECT_THAT(fault(q, [](auto& s) { remove(s, 2, Action::kCopy); }),
              HasSubstr("read before it is written"));
}
TEST_F(Proof, FindsAWriteToInput) {
  EXPECT_THAT(fault(ring_, [](auto& s) { find(s, 0, Action::kRecv).to = Buffer::kInput; }),
              HasSubstr("writes to input"));
}
TEST_F(Proof, FindsARangePastTheEnd) {
  EXPECT_THAT(fault(ring_, [](auto& s) { find(s, 0, Action::kRecv).dst = 11; }),
              HasSubstr("past the end"));
}
TEST_F(Proof, FindsAReceiveIntoMemoryBeingSent) {
  const auto collide = [](auto& s) {
    Step& recv = find(s, 0, Action::kRecv);
    for (const Step& step : s[0].steps) {
      if (step.action == Action::kSend && step.round == recv.round) recv.dst = step.src;
    }
  };
  EXPECT_THAT(fault(ring_, collide), HasSubstr("receives where another message"));
}
TEST_F(Proof, FindsRanksThatAddInDifferentOrders) {
  const Request q{Collective::kAllReduce, Algorithm::kRecursiveDoubling, 0, 4, 0, 3};
  EXPECT_THAT(fault(q, [](auto& s) { find(s, 3, Action::kRecvReduce).flipped = false; }),
              HasSubstr("different orders"));
}
TEST_F(Proof, FindsMoreTrafficThanPromised) {
  const auto chat = [](auto& s) {
    s[0].steps.push_back({Action::kSend, 9, 1, Buffer::kOutput, Buffer::kOutput, 0, 0, 1});
    s[1].steps.push_back({Action::kRecv, 9, 0, Buffer::kInput, Buffer::kOutput, 0, 0, 1});
  };
  EXPECT_THAT(fault(ring_, chat), HasSubstr("promised"));
}
TEST_F(Proof, FindsABarrierThatDoesNotWaitForAll) {
  const Request q{Collective::kBarrier, Algorithm::kRecursiveDoubling, 0, 4, 0, 0};
  const auto forget = [](auto& s) {
    for (auto& schedule : s) schedule.steps.resize(2);
  };
  EXPECT_THAT(fault(q, forget), HasSubstr("leaves the barrier"));
}
TEST_F(Proof, FindsAReadBeforeTheFirstMeeting) {
  const auto early = [](auto& s) {
    for (auto& schedule : s) schedule.steps.erase(schedule.steps.begin());
  };
  EXPECT_THAT(fault(direct_, early), HasSubstr("read before it is written"));
}
TEST_F(Proof, FindsAMissingRankInAMeeting) {
  EXPECT_THAT(fault(direct_, [](auto& s) { s[2].steps.pop_back(); }),
              HasSubstr("others do not come"));
}
TEST_F(Proof, FindsAMissingLastMeeting) {
  const auto leave = [](auto& s) {
    for (auto& schedule : s) schedule.steps.pop_back();
  };
  EXPECT_THAT(fault(direct_, leave), HasSubstr("may leave while a peer still reads"));
}
TEST_F(Proof, FindsAReadDuringTheOwnersWrite) {
  const auto no_second = [](auto& s) {
    for (auto& schedule : s) {
      schedule.steps.push_back(schedule.steps.back());
      std::erase_if(schedule.steps, [](const Step& step) {
        return step.action == Action::kMeet && step.round == 2;
      });
    }
  };
  EXPECT_NE(fault(direct_, no_second), "");
  // Input and output are one array. Rank 0 reads all of its peer's input while the peer adds to its
  // own part of that array.
  const auto read_all = [](auto& s) {
    Step all{Action::kRead, 1, 1, Buffer::kInput, Buffer::kScratch, 0, 0, 12};
    s[0].scratch = 12;
    s[0].steps.insert(s[0].steps.begin() + 1, all);
  };
  EXPECT_THAT(fault(direct_, read_all, /*same_array=*/true),
              HasSubstr("reads what its owner writes"));
}
TEST_F(Proof, FindsInputReadAfterItWasOverwritten) {
  const Request q{Collective::kAllToAll, Algorithm::kRing, 0, 4, 0, 2};
  const auto claim = [](auto& s) {
    for (auto& schedule : s) schedule.in_place = true;
  };
  EXPECT_NE(fault(q, claim, /*same_array=*/true), "");
}

}  // namespace schedule_test
}  // namespace weft::schedule

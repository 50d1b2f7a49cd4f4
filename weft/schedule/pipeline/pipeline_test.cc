// The property test: every algorithm is proved over ranks, micro-batches and virtual stages. Other
// tests check that the proof, make() and the parser reject faulty input.
#include "weft/schedule/pipeline/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "weft/base/error.h"
#include "weft/schedule/pipeline/messages.h"
#include "weft/schedule/pipeline/proof.h"

namespace weft::schedule::pipeline {
namespace {

using ::testing::HasSubstr;

std::string text(const Request& q) {
  return std::string(to_string(q.algorithm)) + " of " + std::to_string(q.micro_batches) +
         " micro-batches over " + std::to_string(q.ranks) + " ranks with " +
         std::to_string(q.virtual_stages);
}

std::vector<int> virtual_stages_of(Algorithm algorithm) {
  if (algorithm == Algorithm::kGPipe || algorithm == Algorithm::kForwardOnly) return {1, 2, 3, 4};
  if (algorithm == Algorithm::kInterleaved) return {2, 3, 4};
  return {algorithm == Algorithm::kZeroBubbleV ? 2 : 1};
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

void prove_over(Algorithm algorithm, const std::vector<int>& ranks) {
  for (const int p : ranks) {
    for (const int v : virtual_stages_of(algorithm)) {
      for (int m = 1; m <= 32; ++m) {
        const Request q{algorithm, p, m, v};
        ASSERT_EQ(message_of([&] { prove(q); }), "no error") << text(q);
      }
    }
  }
}

class EveryPipeline : public ::testing::TestWithParam<Algorithm> {};

TEST_P(EveryPipeline, DoesEveryActionOnceWithoutDeadlockOrBuffersWithinItsMemory) {
  prove_over(GetParam(), {1, 2, 3, 4, 5, 6, 7, 8});
}
TEST_P(EveryPipeline, IsCorrectOver16Ranks) { prove_over(GetParam(), {16}); }

// Slow messages change the order of the steps, and uneven costs change the automatic schedule.
TEST_P(EveryPipeline, IsCorrectWithUnevenCostsAndSlowMessages) {
  for (const Costs& costs :
       {Costs{1, 2.5, 0.5, 0.7}, Costs{1, 0.9, 1.7, 3}, Costs{0.3, 1, 0.1, 0}}) {
    for (const int p : {2, 3, 5}) {
      for (const int m : {1, 4, 9, 16}) {
        const Request q{GetParam(), p, m, virtual_stages_of(GetParam()).back(), costs};
        EXPECT_EQ(message_of([&] { prove(q); }), "no error") << text(q);
      }
    }
  }
}

// With enough micro-batches, the formulas are exact, not only upper bounds.
TEST_P(EveryPipeline, HoldsAsManyMicroBatchesAsDocumented) {
  for (const int v : virtual_stages_of(GetParam())) {
    for (const int p : {1, 2, 4, 8}) {
      const Request q{GetParam(), p, 4 * p, v};
      const Schedule schedule = make(q);
      for (int rank = 0; rank < p; ++rank) {
        const int held = count_held(schedule, rank), most = most_held(q, rank);
        // The automatic schedule may hold less than its limit.
        EXPECT_TRUE(GetParam() == Algorithm::kAutomatic ? held <= most : held == most)
            << text(q) << ", rank " << rank << ": " << held;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryPipeline,
                         ::testing::ValuesIn(algorithms().begin(), algorithms().end()),
                         [](const auto& info) { return "_" + std::string(to_string(info.param)); });

struct Reference {
  Algorithm algorithm;
  int ranks, micro_batches, virtual_stages;
  std::vector<std::string> lists;  // by rank
};

// PyTorch 2.13's lists, written by pipeline_reference.py.
TEST(Pipelines, HavePyTorchsOrderOfActions) {
  const std::vector<Reference> references = {
#include "weft/schedule/pipeline/pipeline_reference.inc"
  };
  for (const Reference& reference : references) {
    const Request q{reference.algorithm, reference.ranks, reference.micro_batches,
                    reference.virtual_stages};
    const Schedule schedule = make(q);
    for (std::size_t rank = 0; rank < reference.lists.size(); ++rank) {
      std::string list;
      for (const Action& a : schedule.actions[rank]) {
        list += (list.empty() ? "" : " ") + std::to_string(a.stage) +
                "FBIW"[static_cast<int>(a.work)] + std::to_string(a.micro_batch);
      }
      EXPECT_EQ(list, reference.lists[rank]) << text(q) << ", rank " << rank;
    }
  }
}

// Narayanan and others 2021, figure 4, for the last and the first of four ranks.
TEST(OneForwardOneBackward, AlternatesFromTheFirstMicroBatchOnTheLastRank) {
  const Schedule schedule = make({Algorithm::kOneForwardOneBackward, 4, 5});
  const auto shown = [&](int rank) {
    std::string line;
    for (const Action& a : schedule.actions[static_cast<std::size_t>(rank)]) {
      line += (a.work == Work::kForward ? "F" : "B") + std::to_string(a.micro_batch) + " ";
    }
    return line;
  };
  EXPECT_EQ(shown(3), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 ");
  EXPECT_EQ(shown(0), "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4 ");
}

TEST(Messages, CrossEachBorderBetweenRanksOnceInEachDirection) {
  const auto total = [](const Request& q) { return traffic(make(q)).total; };
  EXPECT_EQ(total({Algorithm::kGPipe, 4, 8}), 2 * 8 * 3);
  EXPECT_EQ(total({Algorithm::kInterleaved, 4, 8, 2}), 2 * 8 * 7);
  EXPECT_EQ(total({Algorithm::kInterleaved, 1, 8, 2}), 0) << "both stages are the rank's own";
  EXPECT_EQ(total({Algorithm::kZeroBubbleV, 4, 8, 2}), 2 * 8 * 6)
      << "the turn of the V is inside the last rank";
  EXPECT_EQ(total({Algorithm::kForwardOnly, 4, 8}), 8 * 3);
  EXPECT_EQ(traffic(make({Algorithm::kOneForwardOneBackward, 4, 8})).busiest, 2 * 8)
      << "an inner rank sends both ways";
}

TEST(Messages, WaitOnlyForTheirTurnInOneForwardOneBackward) {
  const Request q{Algorithm::kOneForwardOneBackward, 4, 16};
  for (const auto& own : steps(make(q))) EXPECT_LE(waiting(own, q), 2);
}

// --- Faulty schedules, which the proof must reject ---

struct Proof {
  Request request{Algorithm::kZeroBubbleH1, 3, 4};
  Schedule schedule = make(request);
  std::vector<std::vector<Step>> lists = steps(schedule);
  std::string verdict() {
    return message_of([&] { prove(schedule, lists); });
  }
  void remake() { lists = steps(schedule); }
};

TEST(Proof, FindsAnActionThatIsMissing) {
  Proof p;
  p.schedule.actions[1].pop_back();
  EXPECT_THAT(p.verdict(), HasSubstr("micro-batch 3 in stage 1 has not exactly the backwards"));
}

TEST(Proof, FindsAnActionDoneTwiceAndOneOfAnotherRank) {
  Proof p;
  p.schedule.actions[1].push_back({Work::kForward, 0, 1});
  EXPECT_THAT(p.verdict(), HasSubstr("forward of micro-batch 0 in stage 1 twice"));
  p.schedule.actions[1].back().stage = 2;
  EXPECT_THAT(p.verdict(), HasSubstr("is not its own"));
}

TEST(Proof, FindsABackwardBeforeItsForwardAndAWeightBeforeItsInput) {
  Proof p;
  std::swap(p.schedule.actions[2][0], p.schedule.actions[2][1]);
  EXPECT_THAT(p.verdict(),
              HasSubstr("rank 2: backward_input of micro-batch 0 in stage 2 too early"));
  Proof w;
  std::swap(w.schedule.actions[0][3], w.schedule.actions[0][4]);
  EXPECT_THAT(w.verdict(), HasSubstr("before its backward_input"));
}

TEST(Proof, FindsBackwardsThatSumGradientsInAnotherOrder) {
  Proof p;
  auto& actions = p.schedule.actions[2];
  const auto last = std::find_if(actions.rbegin(), actions.rend(),
                                 [](const Action& a) { return a.work == Work::kBackwardWeight; });
  std::swap(*last, *(last + 1));
  EXPECT_THAT(p.verdict(), HasSubstr("out of the order of micro-batches"));
}

TEST(Proof, FindsRanksThatWaitForEachOther) {
  Proof p;  // rank 0 waits for a gradient before it sends the activations for it
  auto& list = p.lists[0];
  const auto receive = std::find_if(list.begin(), list.end(),
                                    [](const Step& s) { return s.kind == Kind::kReceive; });
  std::rotate(list.begin(), receive, receive + 1);
  EXPECT_THAT(p.verdict(), HasSubstr("waits for ever"));
}

TEST(Proof, FindsAMessageLeftOutAndOneThatComesTooLate) {
  Proof p;
  std::erase_if(p.lists[0],
                [](const Step& s) { return s.kind == Kind::kSend && s.action.micro_batch == 3; });
  EXPECT_THAT(p.verdict(), HasSubstr("waits for ever"));
  Proof late;
  const auto at = std::find_if(late.lists[1].begin(), late.lists[1].end(),
                               [](const Step& s) { return s.kind == Kind::kReceive; });
  std::iter_swap(at, at + 1);
  EXPECT_THAT(late.verdict(), HasSubstr("lacks what it needs"));
}

TEST(Proof, FindsAScheduleThatHoldsMoreThanItPromises) {
  Proof p;
  p.schedule = make({Algorithm::kGPipe, 3, 4});
  p.schedule.request.algorithm = Algorithm::kOneForwardOneBackward;
  p.remake();
  EXPECT_THAT(p.verdict(), HasSubstr("rank 0: holds 4 micro-batches, more than 3"));
}

// --- Requests and names ---

TEST(Pipelines, RefuseUnsupportedOptionsAndNameThePipelinesThatSupportThem) {
  const auto refusal = [](const Request& q) { return message_of([&] { make(q); }); };
  EXPECT_THAT(refusal({Algorithm::kOneForwardOneBackward, 4, 8, 2}),
              HasSubstr("1f1b takes 1 virtual stage a rank, not 2; so many take gpipe, "
                        "interleaved, zb_v, forward_only"));
  EXPECT_THAT(refusal({Algorithm::kInterleaved, 4, 8, 1}),
              HasSubstr("interleaved takes at least 2 virtual stages a rank, not 1"));
  EXPECT_THAT(refusal({Algorithm::kZeroBubbleV, 4, 8, 3}),
              HasSubstr("zb_v takes 2 virtual stages a rank, not 3"));
  EXPECT_THAT(refusal({Algorithm::kGPipe, 0, 8}), HasSubstr("a pipeline of 0 ranks"));
  EXPECT_THAT(refusal({Algorithm::kGPipe, 4097, 8}), HasSubstr("at most 4096"));
  EXPECT_THAT(refusal({Algorithm::kGPipe, 4096, 1 << 30, 1 << 20}),
              HasSubstr("100 million actions"));
  EXPECT_THAT(refusal({Algorithm::kGPipe, 4, 0}), HasSubstr("0 micro-batches"));
  EXPECT_THAT(refusal({Algorithm::kGPipe, 4, 8, 0}), HasSubstr("0 virtual stages"));
  EXPECT_THAT(refusal({Algorithm::kGPipe, 4, 8, 1, {0, 1, 1}}), HasSubstr("positive"));
  EXPECT_THAT(refusal({Algorithm::kGPipe, 4, 8, 1, {1, 1, 1e-7}}),
              HasSubstr("a factor of a million"));
  EXPECT_THAT(refusal({Algorithm::kGPipe, 4, 8, 1, {}, 3}),
              HasSubstr("only automatic accepts a memory limit"));
  EXPECT_THAT(refusal({Algorithm::kAutomatic, 4, 8, 1, {}, -1}), HasSubstr("memory of -1"));
  EXPECT_THAT(message_of([] { rank_of({Algorithm::kGPipe, 4, 8}, 4); }), HasSubstr("stage 4 of 4"));
  EXPECT_THAT(message_of([] {
                most_held({Algorithm::kGPipe, 4, 8}, 4);
              }),
              HasSubstr("rank 4 of a pipeline of 4"));
}

TEST(Pipelines, AreParsedByNameAndAnUnknownNameShowsTheNearestOrAll) {
  for (const Algorithm algorithm : algorithms())
    EXPECT_EQ(parse_algorithm(to_string(algorithm)), algorithm);
  EXPECT_THAT(message_of([] { parse_algorithm("interlaeved"); }),
              HasSubstr("did you mean 'interleaved'?"));
  EXPECT_THAT(message_of([] { parse_algorithm("hanayo"); }), HasSubstr("there are gpipe, 1f1b"));
}

}  // namespace
}  // namespace weft::schedule::pipeline

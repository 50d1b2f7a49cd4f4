// A failure on one rank ends the step on all ranks at once, and its error names it.
#include <gmock/gmock.h>

#include <chrono>
#include <csignal>

#include "weft/base/testing/in_time.h"
#include "weft/comm/testing/failures.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/parallel/pipeline/testing/parity.h"

namespace weft::parallel {
namespace {

using pipeline_parity::Algorithm;
using pipeline_parity::kFeatures;
using pipeline_parity::Link;
using pipeline_parity::mse;
using pipeline_parity::wave;
using testing::HasSubstr;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Block `bad` misbehaves from its third forward on.
std::function<Block(int)> blocks_with(int bad, const std::function<void()>& what) {
  return [bad, what](int i) {
    const Link link(i);
    Block block = engine::block(link);
    if (i == bad) {
      block.forward = [link, what, count = 0](const Tensors& x) mutable {
        if (++count == 3) what();
        return Tensors{Link(link)(x[0])};
      };
    }
    return block;
  };
}

void train(const Group& group, const std::function<Block(int)>& make) {
  Pipeline model(group, 6, make,
                 {.algorithm = Algorithm::kOneForwardOneBackward, .micro_batches = 4, .loss = mse});
  for (int step = 0; step < 3; ++step)
    model.train_step({wave({8, kFeatures}, step)}, {wave({8, kFeatures}, step + 1)});
}

TEST(PipelineFailureTiming, AKilledRankIsPeerLostOnTheSurvivorsWithinFiveSeconds) {
  for (const char* transport : {"shm", "tcp"}) {
    for (const int victim : {0, 1, 2}) {
      expect_within(5s, [&](SlowestRank& slowest) {
        const auto codes = comm::fork_ranks(3, transport, [&](const Group& group) {
          torch::set_num_threads(1);
          return comm::ends_with(Errc::kPeerLost, group, slowest, [&] {
            train(group, blocks_with(2 * victim, [] { raise(SIGKILL); }));
          });
        });
        std::vector<int> expected(3, 0);
        expected[static_cast<std::size_t>(victim)] = -SIGKILL;
        EXPECT_EQ(codes, expected) << transport;
      });
    }
  }
}

TEST(PipelineFailureTiming, AnExceptionInAStageEndsAllThreadsWithinFiveSeconds) {
  for (const int thrower : {0, 1, 2}) {
    expect_within(5s, [&](SlowestRank& slowest) {
      const auto start = Clock::now();
      try {
        replicate(3, [&](const Group& group) {
          try {
            train(group,
                  blocks_with(2 * thrower, [] { throw std::runtime_error("the block is bad"); }));
            FAIL();
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), Errc::kAborted);
            EXPECT_NE(group.rank(), thrower);
            throw;
          }
        });
        FAIL();
      } catch (const std::runtime_error& error) {
        EXPECT_THAT(error.what(), HasSubstr("the block is bad"));
      }
      slowest.report_since(start);
    });
  }
}

TEST(PipelineFailureTiming, AnExceptionInAStageEndsAllProcessesWithinFiveSeconds) {
  for (const char* transport : {"shm", "tcp"}) {
    expect_within(5s, [&](SlowestRank& slowest) {
      const auto codes = comm::fork_ranks(3, transport, [&](const Group& group) {
        torch::set_num_threads(1);
        const auto start = Clock::now();
        try {
          train(group, blocks_with(2, [] { throw std::runtime_error("the block is bad"); }));
        } catch (const Error& error) {
          slowest.report_since(start);
          const bool good = error.code() == Errc::kAborted || error.code() == Errc::kPeerLost;
          if (!good) std::fprintf(stderr, "rank %d: %s\n", group.rank(), error.what());
          return good ? 0 : 1;
        } catch (const std::runtime_error&) {
          return group.rank() == 1 ? 0 : 3;
        }
        return 2;
      });
      EXPECT_EQ(codes, std::vector<int>(3, 0)) << transport;
    });
  }
}

// The outputs of the micro-batches have different widths, so the last stage cannot join them.
TEST(PipelineFailure, OutputsThatCannotBeJoinedEndTheNextCallOfTheOtherRanks) {
  replicate(
      2,
      [](const Group& group) {
        const auto make = [](int i) {
          Block block = engine::block(Link(i));
          if (i == 1) {
            block.forward = [width = kFeatures](const Tensors& x) mutable {
              return Tensors{x[0].narrow(1, 0, width--)};
            };
          }
          return block;
        };
        Pipeline model(group, 2, make, {.micro_batches = 2, .loss = mse});
        const Tensors inputs{wave({4, kFeatures}, 0)};
        if (model.has_last_stage()) {
          EXPECT_THROW(model.predict(inputs), c10::Error);
          return;
        }
        at::Tensor answer = at::zeros({1});
        try {
          EXPECT_TRUE(model.predict(inputs).empty());
          group.recv(answer, 1);
          ADD_FAILURE() << "no error";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), Errc::kAborted);
          EXPECT_THAT(error.what(), HasSubstr("rank 1 of the pipeline ended with"));
        }
      },
      10s);
}

std::string refusal(const PipelineOptions& options, int num_blocks, std::int64_t samples) {
  std::string what = "accepted";
  replicate(1, [&](const Group& group) {
    try {
      Pipeline model(
          group, num_blocks, [](int i) { return block(Link(i)); }, options);
      model.train_step({wave({samples, kFeatures}, 0)}, {wave({samples, kFeatures}, 1)});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kInvalidArgument);
      what = error.what();
    }
  });
  return what;
}

TEST(PipelineFailure, InvalidCallsAreRejectedInOneLine) {
  const PipelineOptions good{
      .algorithm = Algorithm::kInterleaved, .micro_batches = 4, .virtual_stages = 3, .loss = mse};
  EXPECT_EQ(refusal(good, 6, 4), "accepted");
  EXPECT_THAT(
      refusal(good, 6, 3),
      HasSubstr("a batch of 3 samples cannot be divided into 4 micro-batches; use at most 3"));
  EXPECT_THAT(refusal(good, 2, 4),
              HasSubstr("3 stages of 2 blocks; every stage needs at least one"));
  PipelineOptions bad = good;
  bad.cuts = {2, 2};
  EXPECT_THAT(refusal(bad, 6, 4), HasSubstr("2 ascending cuts from 1 to 5"));
  bad = good;
  bad.loss = nullptr;
  EXPECT_THAT(refusal(bad, 6, 4), HasSubstr("needs options.loss"));
  bad.loss = [](const Tensors& y, const Tensors&) { return y[0]; };
  EXPECT_THAT(refusal(bad, 6, 4), HasSubstr("must be one number"));
  bad.loss = [](const Tensors& y, const Tensors& t) { return mse(y, t).detach(); };
  EXPECT_THAT(refusal(bad, 6, 4), HasSubstr("the loss does not depend on the model's parameters"));
  bad.loss = [](const Tensors& y, const Tensors& t) { return y[0].sign().eq(t[0].sign()).sum(); };
  EXPECT_THAT(refusal(bad, 6, 4), HasSubstr("the loss does not depend on the model's parameters"));
}

TEST(PipelineFailure, TiedParametersOfDifferentShapesAreRejectedOnAllRanks) {
  replicate(2, [](const Group& group) {
    try {
      const auto make = [](int i) {
        Block block = engine::block(Link(i));
        block.tied["weight"] = torch::ones({2, i + 1});
        return block;
      };
      const Pipeline model(group, 2, make, {.micro_batches = 1, .loss = mse});
      FAIL();
    } catch (const Error& error) {
      EXPECT_THAT(
          error.what(),
          HasSubstr(
              "the tied parameter weight is [2, 1] float in block 0 and [2, 2] float in block 1"));
    }
  });
}

}  // namespace
}  // namespace weft::parallel

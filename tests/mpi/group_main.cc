// Groups over MPI, as weft::init() makes them. Each test is run by all ranks of an mpirun at once:
// four of them.
//
// WEFT_TEST_TRANSPORT is what init() is asked for, WEFT_TEST_CARRIED what it has to say that it
// took.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "weft/comm/init.h"
#include "weft/comm/internal/weft_backend.h"
#include "weft/comm/testing/exercise.h"

namespace weft::comm {
namespace {

using testing::HasSubstr;

std::string set(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

Error error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return Error(Errc::kInternal, "no error was thrown");
}

class MpiGroup : public testing::Test {
 protected:
  MpiGroup()
      : group_(init({.transport = comm::parse_transport(set("WEFT_TEST_TRANSPORT", "auto")),
                     .timeout = std::chrono::seconds(30)})) {}
  // Waits for all ranks without a word over the group.
  static void meet() {
    init({.transport = comm::Transport::kMpi, .timeout = std::chrono::seconds(30)});
  }

  const Group group_;
};

TEST_F(MpiGroup, SaysWhatCarriesIt) {
  const auto& backend = dynamic_cast<const internal::WeftBackend&>(group_.backend());
  EXPECT_THAT(backend.describe(), HasSubstr(set("WEFT_TEST_CARRIED", "mpi")));
  const bool two_levels = backend.describe().find("hosts") != std::string::npos;
  EXPECT_EQ(group_.split() != nullptr, two_levels);
}

TEST_F(MpiGroup, DoesEveryCollectiveAndMessage) { internal::exercise(group_); }

TEST_F(MpiGroup, DoesThemWithinEachLevelToo) {
  const HostSplit* split = group_.split();
  if (split == nullptr) return;  // each rank on a host of its own, or all on one
  internal::exercise(split->local);
  if (split->across) internal::exercise(*split->across);
}

TEST_F(MpiGroup, EndsAnAllReduceWithTheSameBitsOnEveryRankAndOnEveryRun) {
  at::manual_seed(static_cast<std::uint64_t>(17 + group_.rank()));
  const at::Tensor mine = at::randn({100'003});
  at::Tensor sum = mine.clone(), again = mine.clone(), first = at::empty_like(mine);
  group_.all_reduce(sum);
  group_.all_reduce(again);
  first.copy_(sum);
  group_.broadcast(first);
  EXPECT_TRUE(at::equal(sum, first));
  EXPECT_TRUE(at::equal(sum, again));
}

TEST_F(MpiGroup, RefusesToFormItselfAgainAndGoesOn) {
  const Error error = error_of([&] { group_.regroup(); });
  EXPECT_EQ(error.code(), Errc::kBadConfig);
  EXPECT_THAT(error.what(), HasSubstr("met through MPI"));
  EXPECT_THAT(error.what(), HasSubstr("MASTER_ADDR"));
  at::Tensor sum = at::ones({3});
  group_.all_reduce(sum);
  EXPECT_EQ(sum[2].item<float>(), static_cast<float>(group_.size()));
}

TEST_F(MpiGroup, ShowsBothCallsOnEveryRankWhereTheyDiffer) {
  at::Tensor tensor = at::ones({group_.rank() == 1 ? 5 : 4});
  const Error error = error_of([&] { group_.all_reduce(tensor); });
  EXPECT_EQ(error.code(), Errc::kInvalidArgument) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("4"));
  EXPECT_THAT(error.what(), HasSubstr("5"));
  EXPECT_EQ(error_of([&] { group_.barrier(); }).code(), Errc::kAborted);
  meet();
}

TEST_F(MpiGroup, TellsAllRanksOfAReceiveThatRanIntoItsDeadline) {
  at::Tensor tensor = at::ones({3});
  if (group_.rank() == 0) {
    group_.backend().setTimeout(std::chrono::milliseconds(100));
    const Error error = error_of([&] { group_.recv(tensor, 1, 9); });
    EXPECT_EQ(error.code(), Errc::kTimeout) << error.what();
    EXPECT_EQ(error.context().peer, 1);
  } else if (group_.rank() == 2) {
    const Error error = error_of([&] { group_.recv(tensor, 1, 9); });
    EXPECT_EQ(error.code(), Errc::kAborted) << error.what();
  }
  meet();
}

}  // namespace
}  // namespace weft::comm

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

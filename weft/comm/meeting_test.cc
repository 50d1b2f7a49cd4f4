#include "weft/comm/internal/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "weft/base/error.h"

namespace weft::comm::internal {
namespace {

using namespace std::chrono_literals;

// Returns the error of rank 0 of 2 whose peer does not join, if the store has this entry for the
// lost rank.
Error meet(const std::string& lost) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  store->set(kLostKey, std::vector<std::uint8_t>(lost.begin(), lost.end()));
  EXPECT_EQ(lost_rank(*store), lost == "1" ? std::optional(1) : std::nullopt);
  try {
    exchange_over(store, {0, 2, 2s})("hello");
  } catch (const Error& error) {
    return error;
  }
  return {Errc::kInternal, "the exchange succeeded"};
}

TEST(Meeting, AcceptsOnlyARankNumberAsTheLostRank) {
  const Error named = meet("1");
  EXPECT_EQ(named.code(), Errc::kPeerLost);
  EXPECT_EQ(named.context().peer, 1);
  for (const std::string nonsense : {"", "x", "1x", "-1", "99999999999"}) {
    const Error error = meet(nonsense);
    EXPECT_EQ(error.code(), Errc::kCorrupt) << error.what();
    EXPECT_THAT(error.message(), testing::HasSubstr("names '" + nonsense + "' as the lost rank"));
  }
}

}  // namespace
}  // namespace weft::comm::internal

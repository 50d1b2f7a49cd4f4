#include "weft/base/deadline.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

TEST(Deadline, OfTheLongestTimeoutOfEveryUnitIsFarAhead) {
  const nanoseconds far = kLongestTimeout - hours(1);
  EXPECT_TRUE(Deadline::in(nanoseconds::max()).left() > far);
  EXPECT_TRUE(Deadline::in(milliseconds::max()).left() > far);
  EXPECT_TRUE(Deadline::in(hours::max()).left() > far);
}

TEST(Deadline, OfANegativeTimeoutHasPassed) {
  EXPECT_TRUE(Deadline::in(nanoseconds::min()).passed());
  EXPECT_TRUE(Deadline::in(milliseconds::min()).passed());
  EXPECT_TRUE(Deadline::in(milliseconds(-1)).passed());
}

TEST(Deadline, OnlyATimeoutBeyondTheLongestIsBounded) {
  for (const milliseconds timeout : {milliseconds(0), milliseconds(20), milliseconds(-1)})
    EXPECT_TRUE(bounded_timeout(timeout) == timeout);
  EXPECT_TRUE(bounded_timeout(milliseconds::max()) == kLongestTimeout);
  EXPECT_TRUE(bounded_timeout(milliseconds::min()) == kLongestTimeout);
}

}  // namespace
}  // namespace weft

#include "weft/comm/texts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "weft/comm/replicate.h"

namespace weft::comm {
namespace texts_test {

TEST(Together, ThrowsOnAllRanksWhatOneRankThrowsAndTheGroupStays) {
  replicate(3, [](const Group& group) {
    try {
      together(group, [&] {
        if (group.rank() == 1) throw std::runtime_error("the disk is full");
      });
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(group.rank(), 1);
      EXPECT_EQ(error.code(), Errc::kAborted);
      EXPECT_EQ(error.context().peer, 1);
      EXPECT_EQ(error.message(), "rank 1 failed: the disk is full");
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(group.rank(), 1);
    }
    int runs = 0;
    together(group, [&] { ++runs; });
    EXPECT_EQ(runs, 1);
  });
}

TEST(HoldsOnAll, IsTrueOnlyIfEveryRankSaysSo) {
  for (const int ranks : {1, 3}) {
    replicate(ranks, [&](const Group& group) {
      EXPECT_TRUE(holds_on_all(group, true));
      EXPECT_FALSE(holds_on_all(group, group.rank() != ranks - 1));
      EXPECT_FALSE(holds_on_all(group, false));
    });
  }
}

}  // namespace texts_test
}  // namespace weft::comm

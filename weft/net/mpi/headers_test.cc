#include "weft/net/mpi/internal/headers.h"

#include <gtest/gtest.h>

#include <vector>

namespace weft::net::mpi::internal {
namespace {

TEST(MpiHeaders, GiveEachOfTheLastTagsOnce) {
  constexpr std::int32_t kTags = 5;
  std::vector<std::int32_t> given;
  std::int32_t tag = 0;
  for (int i = 0; i < 3 * kTags; ++i) {
    tag = tag_after(tag, kTags);
    EXPECT_TRUE(tag > Headers::kTag && tag < kTags) << tag;
    for (std::size_t back = 1; back < kTags - 1 && back <= given.size(); ++back)
      EXPECT_NE(given[given.size() - back], tag) << i;
    given.push_back(tag);
  }
}

}  // namespace
}  // namespace weft::net::mpi::internal

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/error.h"
#include "weft/comm/environment.h"

namespace weft::comm {
namespace host_list_test {

using ::testing::ElementsAre;

// The forms of Slurm's host lists, as in scontrol(1), "show hostnames".
TEST(ExpandHosts, ExpandsRangesListsPaddingAndSuffixes) {
  EXPECT_THAT(expand_hosts("node[10,20-22]"), ElementsAre("node10", "node20", "node21", "node22"));
  EXPECT_THAT(expand_hosts("a,b[08-10]-ib,c"), ElementsAre("a", "b08-ib", "b09-ib", "b10-ib", "c"));
  EXPECT_THAT(expand_hosts("r[1-2]n[1-2]"), ElementsAre("r1n1", "r1n2", "r2n1", "r2n2"));
  EXPECT_THAT(expand_hosts("[9-11]"), ElementsAre("9", "10", "11"));
  EXPECT_THAT(expand_hosts("login"), ElementsAre("login"));
}

TEST(ExpandHosts, RejectsMalformedAndTooLongLists) {
  for (const char* list : {"", "a,,b", "n[1-", "n]1[", "n[2-1]", "n[x]", "n[]", "n[1,]", "n[[1]]",
                           "n[1]]", "n[1]m[2", "n[0-2000000000]"}) {
    EXPECT_THROW(expand_hosts(list), Error) << list;
  }
  std::string brackets;  // of 10^300 names
  for (int i = 0; i < 300; ++i) brackets += "[0-9]";
  EXPECT_THROW(expand_hosts(brackets), Error);
  EXPECT_EQ(expand_hosts("[0-255]n[0-255]").size(), 65536U);
  EXPECT_THROW(expand_hosts("[0-255]n[0-255],m"), Error);
  EXPECT_EQ(expand_hosts(std::string(253, 'n')).size(), 1U);
  EXPECT_THROW(expand_hosts(std::string(254, 'n')), Error);
  EXPECT_THROW(expand_hosts(std::string(250, 'n') + "[1-65536]"),
               Error);  // it would expand to more than 64 MiB
}

}  // namespace host_list_test
}  // namespace weft::comm

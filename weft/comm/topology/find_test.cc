#include "weft/comm/topology/find.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "weft/comm/testing/fork_ranks.h"

namespace weft::comm::topology {
namespace {

using schedule::Scope;
using schedule::Topology;

TEST(FindTopology, FindsUnequalHostsAndMeasuresBothLevels) {
  const auto codes = fork_ranks(
      3, "auto",
      [](const Group& group) {
        const Topology bare = find_topology(group, {.probe = false});
        if (!(bare == Topology::hosts({2, 1}))) return 1;
        const Topology found = find_topology(group, {.large_bytes = 64 << 10});
        if (found.world() != 3 || found.num_levels() != 2 ||
            found.level(1).group_of != std::vector<int>{0, 0, 1})
          return 2;
        for (int level = 0; level < 2; ++level) {
          const auto& link = found.level(level).link;
          if (link == schedule::default_link(found.level(level).scope)) return 3;  // measured
          if (link.latency <= 0 || link.latency > 1 || link.bandwidth < 1e5) return 4;
        }
        // All ranks have the same topology, and it can be saved as a file.
        const std::string text = found.to_toml();
        at::Tensor mine = at::tensor({static_cast<std::int64_t>(std::hash<std::string>{}(text))},
                                     at::kLong),
                   first = mine.clone();
        group.broadcast(first, 0);
        if (!at::equal(first, mine)) return 5;
        return Topology::parse(text, "test") == found ? 0 : 6;
      },
      {"a", "a", "b"});
  EXPECT_EQ(codes, std::vector<int>(3, 0));
}

TEST(FindTopology, NeedsNoProbeForOneRank) {
  EXPECT_EQ(
      fork_ranks(1, "auto",
                 [](const Group& group) { return find_topology(group).world() == 1 ? 0 : 1; }),
      std::vector<int>(1, 0));
}

}  // namespace
}  // namespace weft::comm::topology

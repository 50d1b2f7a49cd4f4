#include "weft/schedule/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "weft/base/error.h"
#include "weft/base/testing/decimal_comma.h"

namespace weft::schedule {
namespace topology_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two racks. The first has hosts of 4 and 2 ranks, the second has one host of 3 ranks. The host of
// 4 ranks has two NUMA nodes.
Topology three_levels() {
  return Topology(9, {{Scope::kCluster, default_link(Scope::kCluster), {}},
                      {Scope::kRack, default_link(Scope::kRack), {0, 0, 0, 0, 0, 0, 1, 1, 1}},
                      {Scope::kHost, default_link(Scope::kHost), {0, 0, 0, 0, 1, 1, 2, 2, 2}},
                      {Scope::kNuma, default_link(Scope::kNuma), {0, 0, 1, 1, 2, 2, 3, 3, 3}}});
}

std::string refusal(const std::string& toml) {
  try {
    Topology::parse(toml, "t.toml");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kBadConfig);
    return error.what();
  }
  return "";
}

TEST(Topology, FindsTheInnermostLevelThatTwoRanksShare) {
  const Topology t = three_levels();
  EXPECT_EQ(t.level_of(0, 8), 0);
  EXPECT_EQ(t.level_of(3, 4), 1);
  EXPECT_EQ(t.level_of(1, 2), 2);
  EXPECT_EQ(t.level_of(0, 1), 3);
  EXPECT_EQ(t.level_of(6, 8), 3);
  EXPECT_EQ(t.level_of(5, 5), 3);
  EXPECT_EQ(t.link(1, 2), default_link(Scope::kHost));
  EXPECT_EQ(t.find(Scope::kHost), 2);
  EXPECT_THAT(t.children(1, 0), ElementsAre(0, 1));
  EXPECT_THAT(t.children(2, 0), ElementsAre(0, 1));
  EXPECT_THAT(t.children(3, 3), ElementsAre(6, 7, 8));
  EXPECT_EQ(t.find(Scope::kCache), std::nullopt);
}

TEST(Topology, TakesHostsOfUnequalSize) {
  const Topology t = Topology::hosts({4, 4, 3});
  EXPECT_EQ(t.world(), 11);
  EXPECT_EQ(t.num_groups(1), 3);
  EXPECT_THAT(t.members(1, 2), ElementsAre(8, 9, 10));
  EXPECT_EQ(t.describe(), "3 hosts of 4, 4 and 3 ranks");
  EXPECT_EQ(Topology::hosts({2, 2}).describe(), "2 hosts of 2 ranks");
  EXPECT_EQ(Topology::flat(5).describe(), "5 ranks, all alike");
  EXPECT_EQ(Topology::grid({2, 3}).describe(), "torus of 2 x 3");
}

TEST(Topology, OrdersRanksSoThatThoseOfAHostAreAdjacentWhereverTheyWerePlaced) {
  const Topology t(6, {{}, {Scope::kHost, default_link(Scope::kHost), {7, 3, 7, 3, 7, 3}}});
  EXPECT_THAT(t.order(), ElementsAre(0, 2, 4, 1, 3, 5));
  for (int place = 0; place < 6; ++place)
    EXPECT_EQ(t.place_of(t.order()[static_cast<std::size_t>(place)]), place);
  EXPECT_EQ(t.group_of(1, 0), 0);
  EXPECT_EQ(t.group_of(1, 1), 1);
}

TEST(Topology, RefusesGroupsThatDoNotNestOrDoNotFit) {
  const Level cluster;
  const Link link = default_link(Scope::kHost);
  EXPECT_THROW(
      Topology(4,
               {cluster, {Scope::kRack, link, {0, 0, 1, 1}}, {Scope::kHost, link, {0, 1, 1, 2}}}),
      Error);
  EXPECT_THROW(Topology(4, {cluster, {Scope::kHost, link, {0, 0, 1}}}), Error);
  EXPECT_THROW(Topology(2, {{Scope::kHost, link, {0, 1}}}), Error);
  EXPECT_THROW(Topology(2, {{Scope::kHost, link, {}}, {Scope::kRack, link, {0, 1}}}), Error);
  EXPECT_THROW(Topology(2, {{Scope::kHost, {1e-6, 0, 1}, {}}}), Error);
  EXPECT_THROW(Topology(2, {}), Error);
  EXPECT_THROW(Topology(5, {cluster}, Grid{2, 3}), Error);
  EXPECT_THROW(Topology::hosts({4, 0}), Error);
  EXPECT_THROW(Topology::flat(0), Error);
  EXPECT_THROW(Topology::grid({1 << 17, 1 << 17}), Error);
}

TEST(TopologyToml, ReadsUnequalHostsAndLinks) {
  const Topology t = Topology::parse(
      "[host]\nsizes = [4, 4, 3]\n[cluster]\nbandwidth = 1.25e8\nlatency = 5e-5\n", "t.toml");
  Topology expected(11,
                    {{Scope::kCluster, {5e-5, 1.25e8, default_link(Scope::kCluster).reduction}, {}},
                     Topology::hosts({4, 4, 3}).level(1)});
  EXPECT_EQ(t, expected);
  EXPECT_EQ(Topology::parse("[host]\ngroup_of = [1, 0, 1]", "t.toml").members(1, 0),
            (std::vector<int>{0, 2}));
  EXPECT_EQ(Topology::parse("world = 7", "t.toml"), Topology::flat(7));
  EXPECT_EQ(Topology::parse("[host]\nsizes = [8]", "t.toml"), Topology::flat(8, Scope::kHost));
  EXPECT_EQ(Topology::parse("[grid]\nrows = 2\ncolumns = 3\nwraps = false", "t.toml"),
            Topology::grid({2, 3, false}));
}

TEST(TopologyToml, ReadsBackWhatItWrites) {
  const std::vector<int> scattered = {0, 1, 0, 2, 1, 0};
  for (const Topology& t :
       {three_levels(), Topology::hosts({4, 4, 3}), Topology::hosts({4}), Topology::flat(3),
        Topology::flat(3, Scope::kNuma), Topology::grid({3, 4, false}),
        Topology(6, {{}, {Scope::kHost, {1.0 / 3e6, 1e10 / 3, 7e9}, scattered}}, Grid{2, 3})}) {
    EXPECT_EQ(Topology::parse(t.to_toml(), "t.toml"), t) << t.to_toml();
  }
}

TEST(TopologyToml, ReadsBackWhatItWritesInEachLocale) {
  const DecimalComma locale;
  const Topology t(2000, {Level{Scope::kCluster, {1.5e-6, 1.25e9, 7e9}, {}}});
  EXPECT_EQ(Topology::parse(t.to_toml(), "t.toml"), t) << t.to_toml();
}

TEST(TopologyToml, NamesTheKeyThatIsWrongAndTheNearestOne) {
  EXPECT_THAT(refusal("[host]\nsize = [4]"), AllOf(HasSubstr("t.toml:2"), HasSubstr("host.size"),
                                                   HasSubstr("did you mean host.sizes")));
  EXPECT_THAT(refusal("[hosts]\nsizes = [4]"), HasSubstr("did you mean host.sizes"));
  EXPECT_THAT(refusal("[host]\nsizes = [4, 0]"), HasSubstr("host.sizes"));
  EXPECT_THAT(refusal("[host]\nsizes = [2]\ngroup_of = [0, 0]"), HasSubstr("give one of them"));
  EXPECT_THAT(refusal("[host]\nsizes = [2, 2]\n[numa]\nlatency = 1e-7"),
              HasSubstr("[numa] has a link but no ranks"));
  EXPECT_THAT(refusal("world = 5\n[host]\nsizes = [2, 2]"), HasSubstr("4 ranks of 5"));
  EXPECT_THAT(refusal("[cluster]\nsizes = [2, 2]"), HasSubstr("there is one cluster"));
  EXPECT_THAT(refusal("[grid]\nrows = 2"), HasSubstr("grid.rows without grid.columns"));
  EXPECT_THAT(refusal("[grid]\nwraps = false"), HasSubstr("grid.wraps without"));
  EXPECT_THAT(refusal("[grid]\nrows = 200000\ncolumns = 200000"), HasSubstr("grid"));
  EXPECT_THAT(refusal("[host]\nsizes = [200000, 200000]"), HasSubstr("more than"));
  EXPECT_THAT(refusal(""), HasSubstr("no ranks"));
  EXPECT_THAT(refusal("[rack]\nsizes = [2, 2]\n[host]\nsizes = [1, 2, 1]"), HasSubstr("must nest"));
}

}  // namespace topology_test
}  // namespace weft::schedule

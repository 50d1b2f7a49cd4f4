#include "weft/plan/mesh/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "weft/base/error.h"

namespace weft::plan {
namespace mesh_test {

using testing::HasSubstr;

std::string refused(int world, const std::string& axes) {
  try {
    MeshLayout(world, parse_axes(axes));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kBadConfig);
    return error.message();
  }
  return "accepted";
}

TEST(Refit, ChangesDpThenFsdpAndKeepsTheAxesThatCutTheModel) {
  const auto refitted = [](const char* axes, int world) {
    return to_text(refit(parse_axes(axes), world));
  };
  EXPECT_EQ(refitted("dp=4", 3), "dp=3");
  EXPECT_EQ(refitted("dp=0", 3), "dp=0");
  EXPECT_EQ(refitted("pp=2,dp=4,tp=2", 12), "pp=2,dp=3,tp=2");
  EXPECT_EQ(refitted("dp=2,fsdp=4", 4), "dp=1,fsdp=4");
  EXPECT_EQ(refitted("dp=2,fsdp=4", 6), "dp=2,fsdp=3");
  EXPECT_EQ(refitted("fsdp=4", 3), "fsdp=3,dp=1");
  EXPECT_EQ(refitted("tp=2", 4), "tp=2,dp=2");
  EXPECT_THROW(refit(parse_axes("dp=2,tp=2"), 3), Error);
}

TEST(Mesh, TheAxesThatKeepTheirSizesTakeAMultipleOfSoManyRanks) {
  const auto fixed = [](const char* axes) { return fixed_size(parse_axes(axes)); };
  EXPECT_EQ(fixed("dp=4"), 1);
  EXPECT_EQ(fixed("dp=2,fsdp=2,tp=2,pp=3"), 6);
  EXPECT_EQ(fixed("dp=0,tp=2"), 2);
  EXPECT_EQ(fixed("dp=0,fsdp=2,tp=2"), 4);
  EXPECT_EQ(fixed("dp=2,tp=0"), 2);
}

TEST(MeshSpec, IsAxesOrAuto) {
  const MeshSpec axes = "fsdp=2,pp=0", automatic = "auto";
  EXPECT_EQ(axes.axes(), (std::vector<Axis>{{"fsdp", 2}, {"pp", 0}}));
  EXPECT_EQ(axes.text(), "fsdp=2,pp=0");
  EXPECT_EQ(axes, MeshSpec(parse_axes("fsdp=2,pp=0")));
  EXPECT_TRUE(automatic.is_auto());
  EXPECT_EQ(automatic.text(), "auto");
  EXPECT_NE(automatic, axes);
  EXPECT_THROW(automatic.axes(), Error);
  for (const char* text : {"", "dp", "dp=x", "data=2", "auto,dp=2"})
    EXPECT_THROW(MeshSpec{text}, Error) << text;
}

TEST(MeshLayout, PutsTheLastAxisOnNeighborsLikePyTorchsDeviceMesh) {
  const MeshLayout mesh(8, {{"pp", 2}, {"dp", 2}, {"tp", 2}});
  EXPECT_EQ(mesh.coordinate(6, "pp"), 1);
  EXPECT_EQ(mesh.coordinate(6, "dp"), 1);
  EXPECT_EQ(mesh.coordinate(6, "tp"), 0);
  EXPECT_EQ(mesh.members(6, {"tp"}), (std::vector{6, 7}));
  EXPECT_EQ(mesh.members(6, {"pp"}), (std::vector{2, 6}));
  EXPECT_EQ(mesh.members(5, {"tp", "dp"}), (std::vector{4, 5, 6, 7}));
  EXPECT_EQ(mesh.members_in_order(5, {"tp", "dp"}), (std::vector{4, 6, 5, 7}));
  EXPECT_EQ(mesh.members_in_order(5, {"dp", "ep", "tp"}), (std::vector{4, 5, 6, 7}));
  EXPECT_EQ(mesh.members(5, {}), (std::vector{5}));
  EXPECT_EQ(mesh.size("cp"), 1);
  EXPECT_EQ(mesh.coordinate(5, "cp"), 0);
  EXPECT_EQ(mesh.describe(), "pp 2 x dp 2 x tp 2");
}

TEST(MeshLayout, EveryAxisPartitionsAllRanks) {
  for (const char* axes : {"dp=3,tp=4", "pp=2,cp=3,tp=2", "ep=6,fsdp=2", "tp=12", "dp=1,pp=12"}) {
    const MeshLayout mesh(12, parse_axes(axes));
    for (const Axis& axis : mesh.axes()) {
      std::multiset<int> seen;
      for (const auto& group : mesh.groups(axis.name)) {
        EXPECT_EQ(static_cast<int>(group.size()), axis.size);
        for (std::size_t place = 0; place < group.size(); ++place) {
          EXPECT_EQ(mesh.coordinate(group[place], axis.name), static_cast<int>(place));
          EXPECT_EQ(mesh.members(group[place], {axis.name}), group);
        }
        seen.insert(group.begin(), group.end());
      }
      EXPECT_EQ(seen.size(), 12u) << axes;
      EXPECT_EQ(std::set<int>(seen.begin(), seen.end()).size(), 12u) << axes;
    }
  }
}

TEST(MeshLayout, OfManyRanksHasItsGroupsAtOnce) {
  const MeshLayout mesh(200'000, {{"pp", 2}, {"dp", 100'000}});
  const auto pairs = mesh.groups("pp"), halves = mesh.groups("dp");
  ASSERT_EQ(pairs.size(), 100'000U);
  EXPECT_EQ(pairs.back(), (std::vector{99'999, 199'999}));
  ASSERT_EQ(halves.size(), 2U);
  EXPECT_EQ(halves[1].front(), 100'000);
  EXPECT_EQ(halves[1].back(), 199'999);
  EXPECT_EQ(mesh.groups("tp").size(), 200'000U);
  EXPECT_EQ(mesh.members(150'000, {"pp"}), (std::vector{50'000, 150'000}));
  EXPECT_THROW(mesh.members(200'000, {}), Error);
}

TEST(MeshLayout, OneAxisTakesTheRemainingRanks) {
  EXPECT_EQ(MeshLayout(12, parse_axes("dp=0,tp=4")).size("dp"), 3);
  EXPECT_THAT(refused(12, "dp=0,tp=0"), HasSubstr("only one axis"));
}

TEST(MeshLayout, RefusesSizesThatDoNotFitAndNamesTheNearest) {
  EXPECT_EQ(refused(8, "dp=2,tp=3"), "dp=2,tp=3 makes 6 ranks and there are 8; nearest: dp=2,tp=4");
  EXPECT_THAT(refused(8, "dp=0,tp=3"), HasSubstr("nearest: dp=2,tp=4"));
  EXPECT_THAT(refused(4, "dp=2,dp=2"), HasSubstr("comes twice"));
  EXPECT_THAT(refused(4, "fdsp=4"), HasSubstr("did you mean fsdp?"));
  EXPECT_THAT(refused(4, "dp"), HasSubstr("write dp=2,tp=2"));
  EXPECT_THAT(refused(4, "dp=4x"), HasSubstr("write dp=2,tp=2"));
  EXPECT_THAT(refused(4, "dp=-4"), HasSubstr("cannot have size -4"));
  EXPECT_THAT(refused(4, ""), HasSubstr("needs at least one axis"));
  EXPECT_THAT(refused(4, "dp=99999999999"), HasSubstr("no axis with a size"));
}

TEST(MeshLayout, WithoutAxesIsOneRank) {
  EXPECT_EQ(MeshLayout(1, {}).describe(), "one rank");
  try {
    MeshLayout(4, {});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kBadConfig);
    EXPECT_EQ(error.message(), "a mesh of 4 ranks needs at least one axis; write dp=4");
  }
}

}  // namespace mesh_test
}  // namespace weft::plan

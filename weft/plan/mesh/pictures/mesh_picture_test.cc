#include "weft/plan/mesh/pictures/mesh_picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "weft/base/error.h"

namespace weft::plan {
namespace {

using ::testing::HasSubstr;

TEST(MeshPicture, ShowsPlacesOfRanksAndTrafficBetweenHosts) {
  const MeshLayout mesh(4, parse_axes("dp=2,tp=2"));
  const std::string text = show(mesh, {2, 2});
  EXPECT_THAT(text, HasSubstr("4 ranks: dp 2 x tp 2\n\nrank  host  dp    tp\n0     0     0     "
                              "0\n1     0     0     1\n2     1     1     0\n"));
  EXPECT_THAT(text, HasSubstr("dp    {0,2} {1,3}"));
  EXPECT_THAT(text, HasSubstr("same weights, other samples; travels between hosts"));
  EXPECT_THAT(text, HasSubstr("same samples; travels inside a host"));
  EXPECT_THROW(show(mesh, {2, 3}), Error);
  const std::string svg = show_svg(mesh, {2, 2});
  EXPECT_THAT(svg, HasSubstr(">rank 3</text>"));
  EXPECT_THAT(svg, HasSubstr(">dp 1 tp 1</text>"));
}

}  // namespace
}  // namespace weft::plan

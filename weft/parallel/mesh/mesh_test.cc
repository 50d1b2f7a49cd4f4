#include "weft/parallel/mesh/mesh.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "weft/comm/replicate.h"
#include "weft/comm/testing/fork_ranks.h"

namespace weft::parallel {
namespace {

using namespace std::chrono_literals;

double sum_along(const Group& group, double mine) {
  at::Tensor t = at::full({1}, mine, at::kDouble);
  group.all_reduce(t);
  return t.item<double>();
}

// Every group sums 10^rank, so the digits of the sum show its members.
int digits(const Group& world) {
  const Mesh mesh(world, {{"pp", 2}, {"dp", 0}, {"tp", 2}});
  const double mine = std::pow(10.0, world.rank());
  const bool upper = world.rank() >= 2;
  if (mesh.size("dp") != 1 || mesh.coordinate("pp") != (upper ? 1 : 0)) return 1;
  if (sum_along(mesh["tp"], mine) != (upper ? 1100 : 11)) return 2;
  if (sum_along(mesh["pp"], mine) != (world.rank() % 2 == 1 ? 1010 : 101)) return 3;
  if (sum_along(mesh.along({"pp", "tp"}), mine) != 1111) return 4;
  if (sum_along(mesh["dp"], mine) != mine || sum_along(mesh["cp"], mine) != mine) return 5;
  return &mesh["tp"] == &mesh.along({"tp"}) ? 0 : 6;
}

TEST(Mesh, GroupsRanksAlongEveryAxisAsThreadsAndAsProcesses) {
  comm::replicate(
      4, [](const Group& world) { EXPECT_EQ(digits(world), 0); }, 20s);
  EXPECT_EQ(comm::fork_ranks(4, "auto", digits), std::vector<int>(4, 0));
}

TEST(Mesh, NumbersTheRanksOfAGroupInTheOrderOfTheMeshOrOfTheAxes) {
  comm::replicate(4, [](const Group& world) {
    const Mesh mesh(world, {{"fsdp", 2}, {"dp", 2}});
    const int fsdp = mesh.coordinate("fsdp"), dp = mesh.coordinate("dp");
    EXPECT_EQ(mesh.along({"dp", "fsdp"}).rank(), 2 * fsdp + dp);
    EXPECT_EQ(mesh.along_in_order({"dp", "fsdp"}).rank(), 2 * dp + fsdp);
    EXPECT_EQ(&mesh.along_in_order({"fsdp", "dp"}), &mesh.along({"dp", "fsdp"}));
  });
}

TEST(Mesh, AnUnknownAxisIsAnErrorThatNamesTheNearest) {
  comm::replicate(1, [](const Group& world) {
    const Mesh mesh(world, {});
    try {
      mesh["ddp"];
      FAIL();
    } catch (const Error& error) {
      EXPECT_NE(error.message().find("did you mean dp?"), std::string::npos) << error.message();
    }
  });
}

}  // namespace
}  // namespace weft::parallel

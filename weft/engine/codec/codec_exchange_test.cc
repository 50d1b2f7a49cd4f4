#include "weft/engine/codec/codec_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "weft/comm/testing/fork_ranks.h"

namespace weft::engine {
namespace {

void check(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what);
}

TEST(PartOf, HasTheRowsThatAreCompletelyInside) {
  const compress::Unit whole{
      .count = 100, .matrices = {{0, 3, 10}, {32, 4, 5}, {60, 40, 1}}, .id = 3};
  const compress::Unit part = part_of(whole, 15, 55);  // elements 15 to 70
  EXPECT_EQ(part.count, 55);
  EXPECT_EQ(part.id, 3u);
  ASSERT_EQ(part.matrices.size(), 3u);
  EXPECT_EQ(part.matrices[0].first, 5);  // row 2, at 20
  EXPECT_EQ(part.matrices[0].rows, 1);
  EXPECT_EQ(part.matrices[1].first, 17);
  EXPECT_EQ(part.matrices[1].rows, 4);
  EXPECT_EQ(part.matrices[2].first, 45);
  EXPECT_EQ(part.matrices[2].rows, 10);
}

// Two hosts with two ranks each: each rank encodes half of its host's sum and exchanges it with one
// rank of the other host.
TEST(CodecExchange, EncodesOnlyTrafficBetweenHosts) {
  const auto codes = comm::fork_ranks(
      4, "auto",
      [](const Group& group) {
        const compress::Unit whole{
            .count = 1000, .matrices = {{0, 30, 20}, {600, 400, 1}}, .id = 7};
        const auto unit = CodecExchange::unit_for(group, whole);
        check(unit.count == 500 && unit.world == 2 && unit.id == 7, "another share");
        const bool first = group.split()->local.rank() == 0;
        check(unit.matrices.size() == (first ? 1u : 2u), "another number of matrices");
        check(unit.matrices[0].rows == (first ? 25 : 5) && unit.matrices[0].columns == 20,
              "rows that are not whole");
        // If rank 0 encoded its values alone, its quarters would be rounded away beside its
        // hundreds. In the host's sum the hundreds cancel.
        torch::Tensor flat = torch::zeros({1000});
        if (group.rank() == 0) flat = torch::tensor({100.0f, 0.25f}).repeat({500});
        if (group.rank() == 1) flat = torch::tensor({-99.75f, 0.0f}).repeat({500});
        CodecExchange exchange(group, compress::parse("int8:64,ef=off"), whole);
        exchange.start(flat, 0);
        while (exchange.advance()) {
        }
        exchange.finish();
        check((flat - 0.25f).abs().max().item<float>() < 1e-4f,
              "the sum inside the host was rounded");
        return 0;
      },
      {"a", "a", "b", "b"});
  EXPECT_EQ(codes, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace weft::engine

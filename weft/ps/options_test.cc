#include "weft/ps/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "weft/base/testing/refusal.h"
#include "weft/ps/internal/request.h"

namespace weft::ps {
namespace options_test {

using ::testing::HasSubstr;

TEST(PieceOfShards, CoverEachElementOnce) {
  const std::vector<TensorSize> tensors{{"a", 100}, {"b", 1}, {"c", 0}, {"d", 1000}};
  for (std::uint32_t shards : {1u, 2u, 3u, 7u, 200u}) {
    std::vector<std::int64_t> next(tensors.size());
    for (std::uint32_t shard = 0; shard < shards; ++shard) {
      for (const Piece& piece : pieces_of(tensors, shard, shards)) {
        EXPECT_EQ(piece.first, next[piece.tensor]);
        next[piece.tensor] += piece.count;
      }
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(next[i], tensors[i].count);
  }
}

TEST(PsOptions, AreCheckedAndTravelAsBytes) {
  Options options{.rule = kernels::RmsProp{.lr = 0.5, .momentum = 0.25}, .staleness = 3};
  options.push_codec = "topk:0.1";
  EXPECT_TRUE(internal::decode_options(internal::encode_options(options)) == options);
  check(options);
  const auto bad = [](const std::function<void(Options&)>& change) {
    Options given;
    change(given);
    return refusal([&] { check(given); });
  };
  EXPECT_THAT(bad([](Options& o) { o.staleness = -2; }), HasSubstr("staleness is -2"));
  EXPECT_THAT(bad([](Options& o) { o.rule = optim::Lamb{}; }), HasSubstr("lamb needs whole ones"));
  EXPECT_THAT(bad([](Options& o) { o.rule = kernels::Adam{.beta2 = 1}; }),
              HasSubstr("adam has beta2 = 1"));
  EXPECT_THAT(bad([](Options& o) { o.push_codec = "powersgd:2"; }), HasSubstr("not supported"));
  EXPECT_THAT(bad([](Options& o) { o.pull_codec = "int8:64"; }), HasSubstr("none, bf16 or f16"));
  EXPECT_THAT(bad([](Options& o) {
                o.pull_deltas = true;
                o.pull_codec = "randomk:0.1,ef=off";
              }),
              HasSubstr("with pull_deltas"));
  EXPECT_THAT(bad([](Options& o) { o.delay_compensation = 0.1; }), HasSubstr("staleness 0"));
}

TEST(TableSpecs, AreCheckedAndTravelAsBytes) {
  TableSpec table{.name = "words", .row_floats = 2, .rule = Ftrl{.alpha = 0.2, .l1 = 0.3}};
  table.evict_after = 9;
  table.push_codec = "int4:32,stochastic";
  check(table);
  EXPECT_TRUE(internal::decode_table(internal::encode_table(table)) == table);
  const auto bad = [](const std::function<void(TableSpec&)>& change) {
    TableSpec given{.name = "words", .row_floats = 2, .rule = Add{}};
    change(given);
    return refusal([&] { check(given); });
  };
  EXPECT_THAT(bad([](TableSpec& t) { t.name = ""; }), HasSubstr("1 to 255 bytes"));
  EXPECT_THAT(bad([](TableSpec& t) { t.row_floats = 0; }), HasSubstr("table words: row_floats"));
  EXPECT_THAT(bad([](TableSpec& t) { t.push_codec = "int8:64"; }), HasSubstr("stochastic or ef"));
  EXPECT_THAT(bad([](TableSpec& t) { t.push_codec = "topk:0.1"; }), HasSubstr("not supported"));
  EXPECT_THAT(bad([](TableSpec& t) { t.pull_codec = "int8:64"; }), HasSubstr("none, bf16 or f16"));
  std::vector<int> counts(3);
  for (std::uint64_t key = 0; key < 3000; ++key) ++counts[shard_of(key, 3)];
  for (const int count : counts) EXPECT_NEAR(count, 1000, 100);
}

}  // namespace options_test
}  // namespace weft::ps

#include "weft/checkpoint/packed.h"

#include <gtest/gtest.h>

#include <cstring>

#include "weft/base/testing/refusal.h"
#include "weft/checkpoint/reader.h"
#include "weft/checkpoint/testing/dealt.h"

namespace weft::checkpoint {
namespace {

at::Tensor packed(const Shards& shards) {
  const PackedLayout layout(shards);
  at::Tensor block = at::empty({layout.bytes()}, at::kByte);
  layout.copy_to(block);
  return block;
}

std::vector<Reader::Packed> packed_over(int ranks, const std::vector<Named>& tensors, Shard shard) {
  std::vector<Reader::Packed> blocks;
  for (int rank = 0; rank < ranks; ++rank)
    blocks.push_back({packed(shards_of(7, tensors, shard, rank, ranks))});
  return blocks;
}

TEST(Packed, GivesEachRankItsSlicesUnderAnotherDivision) {
  const auto tensors = some_tensors(3);
  for (const Shard written : {flat_shards, column_shards, whole_shards}) {
    const Reader reader = Reader::of_packed(packed_over(3, tensors, written));
    EXPECT_EQ(reader.step(), 7);
    for (const Shard read : {flat_shards, column_shards, whole_shards}) {
      for (int rank = 0; rank < 2; ++rank) {
        std::vector<Named> empty;
        for (const Named& one : tensors) empty.push_back({one.name, at::zeros_like(one.tensor)});
        const Slices wanted = read(tensors, rank, 2), mine = read(empty, rank, 2);
        reader.fill(mine);
        for (std::size_t i = 0; i < mine.size(); ++i)
          EXPECT_TRUE(at::equal(mine[i].tensor, wanted[i].tensor)) << mine[i].name;
      }
    }
    for (const Named& one : tensors) {
      EXPECT_EQ(reader.dtype("model", one.name), one.tensor.scalar_type());
      EXPECT_TRUE(at::equal(reader.read("model", one.name), one.tensor)) << one.name;
    }
  }
}

TEST(Packed, FetchesOnlyTheWantedBytesOfBlocksThatAreElsewhere) {
  const auto tensors = some_tensors(3);
  for (const Shard written : {flat_shards, column_shards, whole_shards}) {
    for (const Shard read : {flat_shards, column_shards, whole_shards}) {
      std::int64_t fetched = 0, wanted_bytes = 0;
      auto blocks = packed_over(3, tensors, written);
      for (Reader::Packed& one : blocks) {
        const at::Tensor block = one.block;
        one = {packed_header(block).clone(), block.numel(),
               [block, &fetched](const std::vector<Reader::Range>& ranges, std::byte* out) {
                 const auto* const from = static_cast<const std::byte*>(block.const_data_ptr());
                 for (const auto& range : ranges) {
                   ASSERT_LE(range.begin + range.bytes, block.numel());
                   std::memcpy(out, from + range.begin, static_cast<std::size_t>(range.bytes));
                   out += range.bytes;
                   fetched += range.bytes;
                 }
               }};
      }
      const Reader reader = Reader::of_packed(blocks);
      std::vector<Named> empty;
      for (const Named& one : tensors) empty.push_back({one.name, at::zeros_like(one.tensor)});
      const Slices wanted = read(tensors, 1, 2), mine = read(empty, 1, 2);
      reader.fill(mine);
      for (std::size_t i = 0; i < mine.size(); ++i) {
        EXPECT_TRUE(at::equal(mine[i].tensor, wanted[i].tensor)) << mine[i].name;
        wanted_bytes += static_cast<std::int64_t>(mine[i].tensor.nbytes());
      }
      EXPECT_EQ(fetched, wanted_bytes);
    }
  }
}

TEST(Packed, KeepsTheStateOfTheFirstBlockAndTheTensorsOfAllParts) {
  Shards shards{.step = 12, .parts = {}, .state = {{"epoch", "3"}, {"loss", "0x1.8p+0"}}};
  shards.parts["model"] = {whole_slice("weight", at::ones({2, 3}))};
  shards.parts["optimizer"] = {whole_slice("weight", at::full({2, 3}, 5.0)),
                               whole_slice("steps", at::scalar_tensor(4, at::kLong))};
  const Reader reader = Reader::of_packed({{packed(shards)}});
  EXPECT_EQ(reader.state(), shards.state);
  EXPECT_EQ(reader.parts(), (std::vector<std::string>{"model", "optimizer"}));
  EXPECT_TRUE(at::equal(reader.read("model", "weight"), at::ones({2, 3})));
  EXPECT_TRUE(at::equal(reader.read("optimizer", "weight"), at::full({2, 3}, 5.0)));
  EXPECT_EQ(reader.read("optimizer", "steps").item<int>(), 4);
}

TEST(Packed, RejectsBlocksThatDoNotBelongTogether) {
  const auto tensors = some_tensors(3);
  auto blocks = packed_over(3, tensors, flat_shards);
  blocks.pop_back();
  expect_refused([&] { Reader::of_packed(blocks); }, Errc::kCorrupt, "do not make up the whole");
  blocks.push_back({packed(shards_of(8, tensors, flat_shards, 2, 3))});
  expect_refused([&] { Reader::of_packed(blocks); }, Errc::kCorrupt, "of steps 7 and 8");
}

TEST(Packed, RejectsDamagedBlocks) {
  const auto block = packed_over(1, some_tensors(3), whole_shards)[0].block;
  expect_refused([&] { Reader::of_packed({{at::zeros({4}, at::kByte)}}); }, Errc::kCorrupt,
                 "has no header");
  expect_refused([&] { Reader::of_packed({{block.narrow(0, 0, block.numel() - 8)}}); },
                 Errc::kCorrupt, "");
  std::uint64_t length = 0;
  std::memcpy(&length, block.data_ptr(), sizeof length);
  for (std::uint64_t at = 0; at < length; ++at) {  // each byte of the header
    at::Tensor damaged = block.clone();
    damaged[static_cast<std::int64_t>(8 + at)] = 255;
    expect_refused([&] { Reader::of_packed({{damaged}}); }, Errc::kCorrupt, "");
  }
}

// As save() does: a Reader could not tell such tensors apart.
TEST(Packed, RefusesNamesThatNoTensorCanHaveAndNamesThatAreGivenTwice) {
  for (const char* name : {"", "weight]", "weight[0:2,0:3]"}) {
    const Parts parts{{"model", {whole_slice(name, at::ones({2, 3}))}}};
    expect_refused([&] { PackedLayout({.step = 1, .parts = parts, .state = {}}); },
                   Errc::kInvalidArgument, "no tensor can be called");
    expect_refused([&] { check_parts(parts); }, Errc::kInvalidArgument, "no tensor can be called");
  }
  const Slice weight = whole_slice("weight", at::ones({2, 3}));
  const Parts twice{{"model", {weight, weight}}};
  expect_refused([&] { PackedLayout({.step = 1, .parts = twice, .state = {}}); },
                 Errc::kInvalidArgument, "\"model/weight\" is given twice");
  expect_refused([&] { check_parts(twice); }, Errc::kInvalidArgument, "\"weight\" is given twice");
}

TEST(Packed, RejectsABlockWithoutRoom) {
  const auto shards = shards_of(1, some_tensors(3), whole_shards, 0, 1);
  const PackedLayout layout(shards);
  expect_refused([&] { layout.copy_to(at::empty({layout.bytes() - 1}, at::kByte)); },
                 Errc::kInvalidArgument, "contiguous bytes");
}

}  // namespace
}  // namespace weft::checkpoint

// The state of a shard on its way to a server that joins.
#include <gtest/gtest.h>

#include "weft/ps/internal/state_pieces.h"
#include "weft/ps/testing/commands.h"
#include "weft/ps/testing/shard_state.h"

namespace weft::ps {
namespace state_pieces_test {

using internal::ChainMessage;
using internal::Shard;

constexpr std::uint64_t kMuch = 1'000'000'000;

TEST(StatePieces, AreSmallAlsoIfTheTensorsAreLarge) {
  Shard shard(kMuch);
  testing::Commands worker(1, 0);
  Options options;
  options.rule = kernels::Adam{};
  options.staleness = kAsync;
  const std::vector<float> values(300'000, 1.0f);
  shard.apply(
      worker.define(options, {{"w", values}}, {{.name = "words", .row_floats = 2, .rule = Add{}}}));
  shard.apply(worker.join());
  shard.apply(worker.push_rows(0, {1, 2}, {1, 1, 1, 1}));
  const std::string state = testing::state_of(shard);

  internal::StateSender sender;
  internal::StateReceiver receiver;
  Shard copy(kMuch);
  std::string piece = sender.begin(shard);
  shard.apply(worker.push(values));  // after the moment of the state
  std::uint64_t number = 0;
  for (bool has_all = false; !has_all && number < 20; ++number) {
    EXPECT_LE(piece.size(), internal::kPieceBytes + sizeof number) << number;
    const ChainMessage message{
        .kind = ChainMessage::Kind::kState, .transfer = 1, .piece = number, .payload = piece};
    // The last piece of the head: all of it is read.
    EXPECT_EQ(receiver.work_of(message) > 3'600'000, number == 3) << number;
    has_all = receiver.take(message, copy);
    if (!has_all) piece = sender.next(shard);
  }
  // 3.6 MB of values and optimizer state, the rows, and the empty piece.
  EXPECT_EQ(number, 6u);
  EXPECT_TRUE(testing::state_of(copy) == state);
}

}  // namespace state_pieces_test
}  // namespace weft::ps

#include "weft/net/internal/calls.h"

#include "weft/net/internal/failure.h"

namespace weft::net::internal {
namespace {

constexpr int kTurns = 2;

}  // namespace

void Calls::compare(const Label& mine, int peer, const Label::Bytes& theirs) const {
  if (mine.bytes != theirs) throw MismatchError(mine.mismatch(rank_, mine.bytes, peer, theirs));
}

void Calls::begin(Channel channel, std::uint64_t number, const Label& label) {
  Lane& lane = lanes_[channel];
  WEFT_CHECK(number == lane.begun, "the calls of a channel are not counted one by one");
  lane.labels[number % kKept] = label;
  lane.begun = number + 1;
  lane.turns = 0;
  for (std::size_t peer = 0; peer < lane.early.size(); ++peer) {
    const auto early = lane.early[peer];
    if (!early || early->number > number) continue;
    lane.early[peer].reset();
    if (early->number == number) compare(label, static_cast<int>(peer), early->label);
  }
}

void Calls::shown(int peer, const Shown& call) {
  Lane& lane = lanes_[call.channel];
  if (call.number >= lane.begun) {
    lane.early.resize(static_cast<std::size_t>(world_));
    lane.early[static_cast<std::size_t>(peer)] = call;
  } else if (lane.begun - call.number <= kKept) {
    compare(lane.labels[call.number % kKept], peer, call.label);
  }
}

std::vector<Calls::Shown> Calls::due() {
  std::vector<Shown> calls;
  for (auto& [channel, lane] : lanes_) {
    if (lane.begun == 0 || lane.turns > kTurns) continue;
    if (++lane.turns <= kTurns) continue;
    const std::uint64_t number = lane.begun - 1;
    calls.push_back({channel, number, lane.labels[number % kKept].bytes});
  }
  return calls;
}

}  // namespace weft::net::internal

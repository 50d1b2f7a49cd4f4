#include "weft/net/internal/calls.h"

#include <cstring>

#include "weft/net/internal/failure.h"

namespace weft::net::internal {
namespace {

constexpr int kTurns = 2;

}  // namespace

void Calls::compare(const Label& mine, int peer, const Label::Bytes& theirs) const {
  if (mine.bytes == theirs) return;
  if (const auto error = mine.mismatch(rank_, mine.bytes, peer, theirs))
    throw MismatchError(*error);
}

void Calls::begin(Channel channel, std::uint64_t number, const Label& label) {
  ChannelQueue& queue = queues_[channel];
  WEFT_CHECK(number == queue.begun, "calls of a channel must be numbered consecutively");
  queue.labels[number % kKept] = label;
  queue.begun = number + 1;
  queue.turns = 0;
  for (std::size_t peer = 0; peer < queue.early.size(); ++peer) {
    const auto early = queue.early[peer];
    if (!early || early->number > number) continue;
    queue.early[peer].reset();
    if (early->number == number) compare(label, static_cast<int>(peer), early->label);
  }
}

void Calls::shown(int peer, const Shown& call) {
  ChannelQueue& queue = queues_[call.channel];
  if (call.number >= queue.begun) {
    queue.early.resize(static_cast<std::size_t>(world_));
    queue.early[static_cast<std::size_t>(peer)] = call;
  } else if (queue.begun - call.number <= kKept) {
    compare(queue.labels[call.number % kKept], peer, call.label);
  }
}

void Calls::arrived(int peer, Channel channel, const Label::Bytes& label) {
  std::uint64_t number = 0;
  std::memcpy(&number, label.data() + label.size() - sizeof number, sizeof number);
  if (label == Label::Bytes{} || number >= queues_[channel].begun + kKept) return;
  shown(peer, {channel, number, label});
}

std::vector<Calls::Shown> Calls::due() {
  std::vector<Shown> calls;
  for (auto& [channel, queue] : queues_) {
    if (queue.begun == 0 || queue.turns > kTurns) continue;
    if (++queue.turns <= kTurns) continue;
    const std::uint64_t number = queue.begun - 1;
    calls.push_back({channel, number, queue.labels[number % kKept].bytes});
  }
  return calls;
}

}  // namespace weft::net::internal

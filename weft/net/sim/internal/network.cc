#include "weft/net/sim/internal/network.h"

#include <algorithm>
#include <memory>

namespace weft::net::sim::internal {
namespace {

constexpr std::size_t kPacketOverhead = 66;  // Ethernet, IPv4 and TCP headers
constexpr std::uint32_t kRandomStream = 1;

enum class Mark : std::uint8_t { kArrive = 1, kLose, kBlock, kDouble, kDamage };

}  // namespace

Network::Network(int world, const Link& link, std::uint64_t seed)
    : link_(link),
      random_(seed, kRandomStream),
      free_at_(world),
      last_arrival_(static_cast<std::size_t>(world) * world) {}

void Network::after(Time delay, Action action) {
  events_.push({now_ + delay, events_made_++, std::move(action)});
}

bool Network::step() {
  if (events_.empty()) return false;
  const Time at = events_.top().at;
  // The move is safe: pop() follows, and the queue does not compare actions.
  const Action action = std::move(const_cast<Event&>(events_.top()).action);
  events_.pop();
  now_ = at;
  action();
  return true;
}

void Network::set_partition(int a, int b, bool cut) {
  for (const auto& pair : {std::pair(a, b), std::pair(b, a)}) {
    if (cut) {
      cut_.insert(pair);
    } else {
      cut_.erase(pair);
    }
  }
}

bool Network::passes(int from, int to) const {
  return !cut_.contains({from, to}) && !silent_.contains(from) && !silent_.contains(to);
}

void Network::send(Packet packet) {
  const double seconds =
      static_cast<double>(packet.bytes.size() + kPacketOverhead) / link_.bytes_per_second;
  Time& free_at = free_at_[packet.from];
  free_at = std::max(free_at, now_) +
            std::chrono::duration_cast<Time>(std::chrono::duration<double>(seconds));
  ++counts_.packets;
  if (random_.uniform() < link_.loss) {
    ++counts_.lost;
    trace_.note(Mark::kLose, now_.count(), packet.from, packet.to, packet.stream, packet.sequence);
    return;
  }
  if (!packet.bytes.empty() && damaged_.erase({packet.from, packet.to}) > 0) {
    ++counts_.damaged;
    packet.bytes[random_.below(packet.bytes.size())] ^=
        static_cast<std::byte>(1 + random_.below(255));
    trace_.note(Mark::kDamage, now_.count(), packet.from, packet.to);
  }
  if (random_.uniform() < link_.duplicate) {
    ++counts_.duplicated;
    trace_.note(Mark::kDouble, now_.count(), packet.from, packet.to);
    carry(packet, free_at);
  }
  carry(std::move(packet), free_at);
}

void Network::carry(Packet packet, Time depart) {
  const Time jitter = link_.jitter > Time(0)
                          ? Time(static_cast<Time::rep>(random_.below(link_.jitter.count() + 1)))
                          : Time(0);
  const Time arrival = depart + link_.latency + jitter;
  Time& last = last_arrival_[static_cast<std::size_t>(packet.from) * free_at_.size() + packet.to];
  counts_.overtook += arrival < last ? 1 : 0;
  last = std::max(last, arrival);
  // std::function needs copyable captures, although a packet is only moved.
  auto held = std::make_shared<Packet>(std::move(packet));
  after(arrival - now_, [this, held] {
    const Packet& p = *held;
    const bool there = passes(p.from, p.to);
    counts_.blocked += there ? 0 : 1;
    trace_.note(there ? Mark::kArrive : Mark::kBlock, now_.count(), p.from, p.to, p.stream,
                p.sequence, p.bytes.size(), p.ack);
    if (there) deliver_(*held);
  });
}

}  // namespace weft::net::sim::internal

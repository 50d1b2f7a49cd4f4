#include "weft/net/sim/internal/endpoint.h"

#include <algorithm>
#include <cstring>

namespace weft::net::sim::internal {
namespace {

using namespace std::chrono_literals;
using net::internal::FrameType;
using net::internal::Operation;
using net::internal::Receipt;

constexpr Time kLinger = 500ms;  // time that a leaving rank waits until its data has arrived

Time time_of(Deadline deadline) { return deadline.when() - kEpoch; }

}  // namespace

SimEndpoint::SimEndpoint(int rank, const Options& options, Network& network, Scheduler& scheduler)
    : rank_(rank),
      options_(options),
      network_(network),
      scheduler_(scheduler),
      mailbox_(rank, options.world, options.room),
      failure_(rank) {
  for (int peer = 0; peer < options.world; ++peer) {
    peers_.emplace_back(PeerConnection::Ends{rank, peer, options}, network, mailbox_,
                        PeerConnection::Events{[this, peer](int stream) { changed(peer, stream); },
                                               [this] { wake(); }});
  }
}

// ---- calls

void SimEndpoint::exchange(Channel channel, std::span<const Send> sends,
                           std::span<const Recv> recvs, Deadline deadline) {
  net::internal::check_peers(world(), sends, recvs);
  failure_.refuse("exchange");
  Operation operation;
  Receipts receipts;
  std::vector<Outgoing> outgoing;
  receipts.reserve(recvs.size());
  outgoing.reserve(sends.size());
  for (const Recv& recv : recvs) receipts.push_back({recv, &operation});
  for (const Send& send : sends) outgoing.push_back({send, channel, &operation});
  guarded([&] {
    for (Receipt& receipt : receipts) {
      mailbox_.post(channel, receipt);
      connection(receipt.recv.peer).read_paused();
    }
    for (Outgoing& message : outgoing) send(message);
  });
  if (failure_.latched()) failure_.end_pending("exchange");
  while (operation.pending > 0) {
    guarded([&] { check_left(receipts); });
    if (failure_.latched()) failure_.end_pending("exchange");
    if (network_.now() >= time_of(deadline)) time_out(channel, receipts, outgoing);
    wait_until(time_of(deadline));
  }
}

int SimEndpoint::await_any(Channel channel, Deadline deadline) {
  failure_.refuse("await_any");
  while (true) {
    const int peer = mailbox_.any(channel);
    if (peer >= 0) return peer;
    guarded([&] { check_company(); });
    if (failure_.latched()) failure_.end_pending("await_any");
    if (network_.now() >= time_of(deadline)) net::internal::throw_no_message(rank_, channel);
    wait_until(time_of(deadline));
  }
}

void SimEndpoint::fail(const Error& why) noexcept {
  if (failure_.latch(why, true)) silence();
}

void SimEndpoint::wait_until(Time when) {
  network_.after(std::max(when - network_.now(), Time(0)), [this, wait = ++waits_] {
    if (wait == waits_) wake();
  });
  scheduler_.wait(rank_);
}

void SimEndpoint::wake() {
  if (dead_) return;
  wake_later_ = stopped_;
  if (!stopped_) scheduler_.wake(rank_);
}

template <typename Body>
void SimEndpoint::guarded(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    end_group(error);
  }
}

void SimEndpoint::end_group(const Error& error) {
  if (!failure_.latch(error, false)) return;
  silence();
  wake();
  const auto told = net::internal::abort_of(error, *failure_.error());
  if (!told) return;
  for (PeerConnection& peer : peers_) peer.say(FrameType::kAbort, encode(*told));
}

// The memory of calls may be freed from now on.
void SimEndpoint::silence() {
  for (PeerConnection& peer : peers_) peer.silence();
}

void SimEndpoint::send(Outgoing& message) {
  const int peer = message.send.peer;
  const auto bytes = message.send.bytes;
  if (peer != rank_) return connection(peer).send(message);
  const net::internal::Piece piece{
      rank_, message.channel, connection(peer).next_number(message.channel), bytes.size(),
      0,     bytes.size()};
  std::byte* const place = mailbox_.begin(piece);
  if (!bytes.empty()) std::memcpy(place, bytes.data(), bytes.size());
  mailbox_.end(piece);
}

void SimEndpoint::check_left(const Receipts& receipts) const {
  net::internal::check_left(
      rank_, receipts, [&](int peer) { return peers_[static_cast<std::size_t>(peer)].left(); });
}

void SimEndpoint::check_company() const {
  for (int peer = 0; peer < world(); ++peer) {
    if (peer == rank_ ? world() == 1 : !peers_[static_cast<std::size_t>(peer)].left()) return;
  }
  net::internal::throw_alone(rank_);
}

void SimEndpoint::time_out(Channel channel, const Receipts& receipts,
                           const std::vector<Outgoing>& outgoing) {
  const Error error = net::internal::exchange_timeout(rank_, channel, receipts, outgoing);
  end_group(error);
  throw error;
}

// ---- events

void SimEndpoint::changed(int peer, int stream) {
  if (dead_ || stopped_) return;
  PeerConnection& from = connection(peer);
  from.pump(stream);
  if (leaving_) {  // its input is not needed
    from.drain(stream);
    return wake();
  }
  guarded([&] { from.read(stream, failure_.latched()); });
}

void SimEndpoint::tick() {
  if (dead_ || stopped_ || leaving_ || failure_.latched()) return;
  guarded([&] {
    for (PeerConnection& peer : peers_) peer.tick();
  });
}

void SimEndpoint::die(bool power_off) {
  dead_ = true;
  for (PeerConnection& peer : peers_) {
    if (!power_off) peer.abandon();
  }
  scheduler_.end(rank_);
}

void SimEndpoint::set_stopped(bool stopped) {
  stopped_ = stopped;
  if (stopped_ || dead_) return;
  for (int peer = 0; peer < world(); ++peer) {
    for (int stream = 0; stream < connection(peer).streams(); ++stream) changed(peer, stream);
  }
  if (wake_later_) wake();
}

void SimEndpoint::leave() {
  for (PeerConnection& peer : peers_) peer.say(FrameType::kGoodbye, {});
  silence();
  leaving_ = true;
  const Time limit = network_.now() + kLinger;
  const auto all_acknowledged = [&] {
    return std::all_of(peers_.begin(), peers_.end(),
                       [](const PeerConnection& peer) { return peer.all_acknowledged(); });
  };
  while (true) {
    for (PeerConnection& peer : peers_) peer.close();
    if (all_acknowledged() || network_.now() >= limit) break;
    wait_until(limit);
  }
  for (PeerConnection& peer : peers_) peer.abandon();
  dead_ = true;
}

}  // namespace weft::net::sim::internal

#include "weft/net/sim/internal/endpoint.h"

#include <algorithm>
#include <array>

#include "weft/net/channels.h"

namespace weft::net::sim::internal {
namespace {

using namespace std::chrono_literals;
using net::internal::Abort;
using net::internal::FrameReader;
using net::internal::FrameType;
using net::internal::Operation;
using net::internal::Receipt;

// Time until a peer whose data stream closed without a goodbye is lost.
constexpr Time kGrace = 250ms;
constexpr Time kLinger = 500ms;  // time that a leaving rank waits until its data has arrived

Time time_of(Deadline deadline) { return deadline.when() - kEpoch; }

}  // namespace

SimEndpoint::SimEndpoint(int rank, const Options& options, Network& network, Scheduler& scheduler)
    : rank_(rank),
      options_(options),
      network_(network),
      scheduler_(scheduler),
      mailbox_(rank, options.world, options.room),
      failure_(rank),
      peers_(static_cast<std::size_t>(options.world)) {
  for (int peer = 0; peer < options.world; ++peer) {
    if (peer == rank) continue;
    Peer& other = peers_[static_cast<std::size_t>(peer)];
    other.streams.resize(static_cast<std::size_t>(options.streams) + 1);
    for (int i = 0; i <= options.streams; ++i) {
      Stream& stream = other.streams[static_cast<std::size_t>(i)];
      const Socket::Options ends{rank, peer, i, options.peer_timeout};
      stream.socket =
          std::make_unique<Socket>(network, ends, [this, peer, i] { changed(peer, i); });
      stream.out = std::make_unique<net::internal::FrameWriter>(static_cast<std::uint16_t>(i),
                                                                options.epoch);
      stream.in = std::make_unique<FrameReader>(static_cast<std::uint16_t>(i), options.epoch);
    }
  }
}

void SimEndpoint::lost(int peer, const std::string& cause) const {
  throw Error(Errc::kPeerLost, "rank " + std::to_string(peer) + " is lost: " + cause,
              {"", rank_, peer});
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
    for (Receipt& receipt : receipts) post(channel, receipt);
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
    if (network_.now() >= time_of(deadline)) {
      throw Error(Errc::kTimeout, "no message" + on_channel(channel) + " before the deadline",
                  {"await_any", rank_});
    }
    wait_until(time_of(deadline));
  }
}

void SimEndpoint::fail(const Error& why) noexcept {
  if (failure_.latch(why, true)) silenced_ = true;
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
  silenced_ = true;
  wake();
  if (error.code() == Errc::kAborted) return;  // the other ranks know
  const bool is_loss = error.code() == Errc::kPeerLost;
  const Abort abort{error.code(), error.context().peer, is_loss ? error.message() : error.what()};
  for (int peer = 0; peer < world(); ++peer) say(peer, FrameType::kAbort, encode(abort));
}

void SimEndpoint::check_left(const Receipts& receipts) const {
  for (const Receipt& receipt : receipts) {
    const int peer = receipt.recv.peer;
    if (receipt.done || !peers_[static_cast<std::size_t>(peer)].left) continue;
    throw Error(
        Errc::kPeerLost,
        "rank " + std::to_string(peer) + " left the group while a message from it was awaited",
        {"exchange", rank_, peer});
  }
}

void SimEndpoint::check_company() const {
  for (int peer = 0; peer < world(); ++peer) {
    if (peer == rank_ ? world() == 1 : !peers_[static_cast<std::size_t>(peer)].left) return;
  }
  throw Error(Errc::kPeerLost, "every other rank left the group while a message was awaited",
              {"await_any", rank_, rank_ == 0 ? 1 : 0});
}

void SimEndpoint::time_out(Channel channel, const Receipts& receipts,
                           const std::vector<Outgoing>& outgoing) {
  std::string missing;
  int culprit = -1;
  const auto add = [&](const char* what, int peer) {
    if (culprit < 0) culprit = peer;
    missing += (missing.empty() ? "" : ", ") + std::string(what) + std::to_string(peer);
  };
  for (const Receipt& receipt : receipts) {
    if (!receipt.done) add("from rank ", receipt.recv.peer);
  }
  for (const Outgoing& message : outgoing) {
    if (message.next < message.send.bytes.size() || message.flying > 0)
      add("to rank ", message.send.peer);
  }
  const Error error(Errc::kTimeout,
                    "not complete before the deadline" + on_channel(channel) + ": " + missing,
                    {"exchange", rank_, culprit});
  end_group(error);
  throw error;
}

// ---- events

void SimEndpoint::changed(int peer, int index) {
  if (dead_ || stopped_) return;
  Peer& from = peers_[static_cast<std::size_t>(peer)];
  Stream& stream = from.streams[static_cast<std::size_t>(index)];
  pump(peer, stream);
  if (leaving_) {  // its input is not needed; unread input would turn the close into a reset
    std::array<std::byte, 4096> scratch;
    while (stream.socket->read(scratch) > 0) {
    }
    return wake();
  }
  if (stream.open && !stream.paused && (!failure_.latched() || is_control(from, stream)))
    guarded([&] { read(peer, stream); });
}

void SimEndpoint::on_goodbye(int peer) {
  Peer& from = peers_[static_cast<std::size_t>(peer)];
  from.goodbye = true;
  const bool sending = std::any_of(from.streams.begin(), from.streams.end(),
                                   [](const Stream& s) { return s.sending != nullptr; });
  if (sending || !from.queue.empty())
    lost(peer, "it left the group while a message to it was under way");
  settle(from);
}

void SimEndpoint::closed(int peer, Stream& stream) {
  Peer& from = peers_[static_cast<std::size_t>(peer)];
  stream.open = false;
  const std::string cause =
      stream.socket->broken() ? stream.socket->cause() : "its connection was closed";
  if (!from.goodbye && is_control(from, stream)) lost(peer, cause);
  if (!from.goodbye && from.cause.empty()) {
    from.suspected = network_.now();
    from.cause = cause;
  }
  settle(from);
}

void SimEndpoint::settle(Peer& peer) {
  const auto done = [&](const Stream& stream) { return is_control(peer, stream) || !stream.open; };
  const bool all = std::all_of(peer.streams.begin(), peer.streams.end(), done);
  if (!peer.goodbye || !all || peer.left) return;
  peer.left = true;
  wake();
}

void SimEndpoint::tick() {
  if (dead_ || stopped_ || leaving_ || failure_.latched()) return;
  const Time interval = std::min<Time>(Time(options_.peer_timeout) / 4, 1s);
  guarded([&] {
    for (int peer = 0; peer < world(); ++peer) {
      Peer& other = peers_[static_cast<std::size_t>(peer)];
      if (peer == rank_ || other.goodbye) continue;
      if (!other.cause.empty() && network_.now() - other.suspected >= kGrace)
        lost(peer, other.cause);
      if (network_.now() - other.heard > options_.peer_timeout) {
        lost(peer, "nothing was heard of it for " + std::to_string(options_.peer_timeout.count()) +
                       " ms");
      }
      if (network_.now() - other.beaten < interval || !other.control.empty()) continue;
      other.beaten = network_.now();
      say(peer, FrameType::kHeartbeat, {});
    }
  });
}

void SimEndpoint::die(bool power_off) {
  dead_ = true;
  for (Peer& peer : peers_) {
    for (Stream& stream : peer.streams) {
      if (!power_off) stream.socket->abandon();
    }
  }
  scheduler_.end(rank_);
}

void SimEndpoint::set_stopped(bool stopped) {
  stopped_ = stopped;
  if (stopped_ || dead_) return;
  for (int peer = 0; peer < world(); ++peer) {
    for (std::size_t i = 0; i < peers_[static_cast<std::size_t>(peer)].streams.size(); ++i)
      changed(peer, static_cast<int>(i));
  }
  if (wake_later_) wake();
}

void SimEndpoint::cut(int peer) {
  for (Stream& stream : peers_[static_cast<std::size_t>(peer)].streams) stream.socket->reset();
}

bool SimEndpoint::all_said() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
    return std::all_of(peer.streams.begin(), peer.streams.end(),
                       [](const Stream& s) { return s.socket->all_acknowledged(); });
  });
}

void SimEndpoint::leave() {
  for (int peer = 0; peer < world(); ++peer) say(peer, FrameType::kGoodbye, {});
  silenced_ = leaving_ = true;
  const Time limit = network_.now() + kLinger;
  while (true) {
    for (Peer& peer : peers_) {
      for (Stream& stream : peer.streams) {
        if (peer.control.empty()) stream.socket->close();
      }
    }
    if (all_said() || network_.now() >= limit) break;
    wait_until(limit);
  }
  for (Peer& peer : peers_) {
    for (Stream& stream : peer.streams) stream.socket->abandon();
  }
  dead_ = true;
}

}  // namespace weft::net::sim::internal

// An endpoint over simulated sockets, with the same frames, message matching and errors as that of
// TCP.
//
// Belongs to one rank. The rank's thread makes its calls. Events call its network side only while
// no rank runs, so there are never two calls at once.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "weft/net/internal/failure.h"
#include "weft/net/internal/mailbox.h"
#include "weft/net/sim/internal/scheduler.h"
#include "weft/net/sim/internal/socket.h"
#include "weft/net/tcp/frame_stream.h"

namespace weft::net::sim::internal {

// Start of the virtual clock: so far in the future that code that reads the real clock finds no
// deadline passed.
inline constexpr Deadline::Clock::time_point kEpoch{std::chrono::hours(24 * 365 * 100)};

class SimEndpoint final : public Endpoint {
 public:
  SimEndpoint(int rank, const Options& options, Network& network, Scheduler& scheduler);

  int rank() const override { return rank_; }
  int world() const override { return options_.world; }
  const char* name() const override { return "sim"; }
  std::uint32_t epoch() const override { return options_.epoch; }
  void exchange(Channel channel, std::span<const Send> sends, std::span<const Recv> recvs,
                Deadline deadline) override;
  int await_any(Channel channel, Deadline deadline) override;
  void fail(const Error& why) noexcept override;
  std::optional<Error> failure() const override { return failure_.error(); }

  // Called by the rank's thread. Waits until an event occurs or the time is reached.
  void wait_until(Time when);
  // Sends a goodbye and waits for a while for it to arrive. No calls are allowed after it.
  void leave();

  // Called by events.
  void deliver(Packet& packet) { socket(packet.from, packet.stream).deliver(packet); }
  void tick();
  void die(bool power_off);
  void set_stopped(bool stopped);
  void cut(int peer);

 private:
  struct Outgoing {
    Send send;
    Channel channel = 0;
    net::internal::Operation* operation = nullptr;
    std::uint64_t number = 0;
    std::size_t next = 0;    // bytes given to streams
    std::size_t flying = 0;  // frames given to streams and not yet written
  };
  struct Stream {
    std::unique_ptr<Socket> socket;
    std::unique_ptr<net::internal::FrameWriter> out;
    std::unique_ptr<net::internal::FrameReader> in;
    Outgoing* sending = nullptr;
    bool paused = false;
    bool open = true;
  };
  struct Peer {
    std::vector<Stream> streams;  // the last is the control stream
    std::deque<Outgoing*> queue;
    std::deque<std::pair<net::internal::FrameType, std::vector<std::byte>>> control;
    std::unordered_map<Channel, std::uint64_t> sent;
    std::vector<std::byte> control_in;
    Time heard{}, beaten{}, suspected{};
    std::string cause;  // why the peer is suspected
    bool goodbye = false;
    bool left = false;
  };
  using Receipts = std::vector<net::internal::Receipt>;

  Socket& socket(int peer, int stream) {
    return *peers_[static_cast<std::size_t>(peer)].streams[static_cast<std::size_t>(stream)].socket;
  }
  bool is_control(const Peer& peer, const Stream& stream) const {
    return &stream == &peer.streams.back();
  }
  template <typename Body>
  void guarded(const Body& body);
  void end_group(const Error& error);
  void wake();

  void changed(int peer, int stream);
  void read(int peer, Stream& stream);
  bool fill(Stream& stream);
  bool begin_frame(int peer, Stream& stream);
  void end_frame(int peer, const Stream& stream);
  void on_abort(int peer);
  void on_goodbye(int peer);
  void closed(int peer, Stream& stream);
  void settle(Peer& peer);

  void post(Channel channel, net::internal::Receipt& receipt);
  void send(Outgoing& message);
  void pump(int peer, Stream& stream);
  bool load(Peer& peer, Stream& stream);
  void written(Peer& peer, Stream& stream);
  void say(int peer, net::internal::FrameType type, std::vector<std::byte> payload);
  bool all_said() const;

  void check_left(const Receipts& receipts) const;
  void check_company() const;
  void time_out(Channel channel, const Receipts& receipts, const std::vector<Outgoing>& outgoing);
  [[noreturn]] void lost(int peer, const std::string& cause) const;

  const int rank_;
  const Options& options_;
  Network& network_;
  Scheduler& scheduler_;
  net::internal::Mailbox mailbox_;
  net::internal::Failure failure_;
  std::vector<Peer> peers_;
  // No data is sent or received any more, since the memory of calls may be freed.
  bool silenced_ = false;
  bool leaving_ = false;
  bool dead_ = false;
  bool stopped_ = false;     // the process is stopped
  bool wake_later_ = false;  // it was woken while stopped
  std::uint64_t waits_ = 0;  // number of waits: timers of older waits are ignored
};

}  // namespace weft::net::sim::internal

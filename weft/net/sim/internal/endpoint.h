// An endpoint as TCP's, with the same frames, matching of messages and errors, over the sockets of
// a simulation.
//
// Belongs to one rank. Its network side is called by events while no rank runs, its calls by the
// rank's own thread: never both at once.
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
#include "weft/net/tcp/framing.h"

namespace weft::net::sim::internal {

// The virtual clock starts here: so far off that whoever looks at the real one finds no deadline
// passed.
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

  // By the rank's thread. Waits until something has happened, or the time has come.
  void wait_until(Time when);
  // Says goodbye and waits a while for it to arrive. Nothing can be called after it.
  void leave();

  // By events.
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
    std::string cause;  // why it is suspected
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
  bool silenced_ = false;  // no data is sent or received any more: the calls' memory may be gone
  bool leaving_ = false;
  bool dead_ = false;
  bool stopped_ = false;     // the process stands still
  bool wake_later_ = false;  // it was woken meanwhile
  std::uint64_t waits_ = 0;  // how often it has waited: a timer of an older wait means nothing
};

}  // namespace weft::net::sim::internal

// The connections to one peer: its streams, the messages that wait for them, and how they end. The
// last stream is for control frames, the others are for data. There are none to the own rank.
//
// Invariant: the pieces of a message are given to streams in order, and no memory of a call is used
// after stop(). Never waits; the owner of the Engine guards it.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weft/net/internal/calls.h"
#include "weft/net/internal/mailbox.h"
#include "weft/net/internal/peer_health.h"
#include "weft/net/tcp/internal/connection.h"
#include "weft/net/tcp/internal/formation.h"

namespace weft::net::internal {

// A message to be sent. It must stay valid until operation->complete(id) or stop().
struct Outgoing {
  Send send;
  Channel channel = 0;
  Operation* operation = nullptr;
  std::uint32_t id = 0;
  std::uint64_t number = 0;
  bool begun = false;    // its first frame was given to a stream
  std::size_t next = 0;  // bytes given to streams
  // Frames given to streams that are not yet written, or sent without a copy and not yet complete.
  std::size_t flying = 0;
  bool complete() const { return begun && next == send.bytes.size() && flying == 0; }
};

struct EngineOptions {
  int rank = 0;
  std::uint32_t epoch = 0;
  std::size_t room = 0;
  std::chrono::milliseconds peer_timeout{0};
  std::string congestion{};  // as in TcpOptions
  ZeroCopy zero_copy = ZeroCopy::kWhereItHelps;
  std::function<std::vector<int>()> found_lost{};  // as in TcpOptions
};

class PeerConnection {
 public:
  using Clock = std::chrono::steady_clock;
  // Of the engine, which outlives this.
  struct Shared {
    const EngineOptions& options;
    int world;
    int epoll;
    Mailbox& mailbox;
    Calls& calls;
  };

  PeerConnection(const Shared& shared, int peer, std::vector<Fd> sockets);
  PeerConnection(PeerConnection&&) = default;
  PeerConnection(const PeerConnection&) = delete;

  // The tag of a stream's events in epoll, and the parts of a tag.
  static constexpr int kStreamBits = 16;
  static int peer_of(std::uint64_t tag) { return static_cast<int>(tag >> kStreamBits); }
  // Handles an event of epoll_wait.
  void handle(std::uint64_t tag, std::uint32_t events);
  // True if the peer has sent a goodbye and all its earlier data was read.
  bool left() const { return left_; }

  // ---- sending
  // The number of the next message of this channel.
  std::uint64_t next_number(Channel channel) { return sent_[channel]++; }
  // See Engine::send(). The message has its number.
  void send(Outgoing& message);
  // Sends a control frame, as far as the socket accepts it.
  void say(const Header& header, std::vector<std::byte> payload = {});
  // Sends control frames that the socket has not accepted before.
  void say_rest();

  // ---- receiving
  // Reads streams that are paused, since there may be room for their frames. Returns true if some
  // were.
  bool resume();

  // ---- life and death
  // Sends a heartbeat if it is due. Throws kPeerLost if the peer is silent or has disappeared.
  void tick(Clock::time_point now);
  // Throws kPeerLost, unless the peer has sent a goodbye.
  void give_up(const std::string& cause) const;
  // See Engine::stop().
  void stop();
  // Closes the sending side after the last frame. True if the peer has acknowledged every frame, or
  // is not connected.
  bool all_sent();

 private:
  struct Stream {
    std::unique_ptr<Connection> connection;
    Outgoing* sending = nullptr;     // message of the current frame
    std::uint64_t sends_before = 0;  // sent() of the connection before that frame
    // Written frames, with the number of the zero-copy send that they wait for.
    std::deque<std::pair<std::uint64_t, Outgoing*>> unacknowledged = {};
    std::uint32_t events = 0;  // events registered with epoll
    bool paused = false;       // there is no room for its next frame
    bool open = true;          // more data may arrive
    bool writable = true;
  };

  bool is_control(const Stream& stream) const { return &stream == &streams_.back(); }
  [[noreturn]] void lost(const std::string& cause) const;
  void watch(Stream& stream);
  // sending.cc
  void pump(Stream& stream);
  bool load_data(Stream& stream);
  bool is_zero_copy(std::size_t frame, std::size_t rest) const;
  bool load_control();
  void written(Stream& stream);
  static bool collect(Stream& stream);
  // peer_connection.cc
  void read(Stream& stream);
  void read_frames(Stream& stream);
  bool begin_frame(Stream& stream);
  void end_frame(const Stream& stream);
  void on_abort();
  void on_goodbye();
  void closed(Stream& stream);
  void suspect(const Stream& stream);
  void settle();

  Shared shared_;
  int peer_;
  std::vector<Stream> streams_;
  std::deque<Outgoing*> small_, large_;
  std::deque<std::pair<Header, std::vector<std::byte>>> control_;
  std::vector<std::byte> control_in_;
  std::unordered_map<Channel, std::uint64_t> sent_;
  PeerHealth health_;
  bool goodbye_ = false;
  bool left_ = false;  // goodbye received, and every data stream read to its end
  bool stopped_ = false;
};

}  // namespace weft::net::internal

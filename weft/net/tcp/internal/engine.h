// Moves the frames of one rank between its mailbox and the streams of all peers. Never waits; the
// owner guards and drives it.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "weft/net/internal/calls.h"
#include "weft/net/internal/mailbox.h"
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

class Engine {
 public:
  using Clock = std::chrono::steady_clock;

  // The last stream of each peer is its control stream.
  Engine(const EngineOptions& options, Mesh mesh);

  int world() const { return static_cast<int>(peers_.size()); }
  // For epoll_wait of a waiting thread: readable streams, writable streams with data to send, and
  // wake().
  int epoll_fd() const { return epoll_.get(); }
  void wake() const;

  // Start transfers. All throw the error that ends the group: kPeerLost, kCorrupt,
  // kInvalidArgument, kAborted (another rank's error).
  void post(Channel channel, Receipt& receipt);
  void send(Outgoing& message);
  // See Endpoint::wait_for(). Returns true if messages may have arrived by it.
  bool wait_for(int peer, bool begin);
  // See Endpoint::begin_call().
  void begin_call(Channel channel, std::uint64_t number, const Label& label) {
    calls_.begin(channel, number, label);
  }
  // Handles an event of epoll_wait.
  void handle(std::uint64_t tag, std::uint32_t events);
  // Handles heartbeats, long-running calls, silent peers, and streams that closed without a
  // goodbye. Called about ten times per second.
  void tick(Clock::time_point now);

  int any(Channel channel, const std::function<bool(int peer)>& may) {
    return mailbox_.any(channel, may);
  }
  // True if the peer has sent a goodbye and all its earlier data was read.
  bool has_left(int peer) const { return peers_[peer].left; }

  // Stops sending and receiving data. Memory of calls is not touched afterwards.
  void stop();
  // Sends the reason of the failure to the other ranks, as far as the sockets accept it.
  void tell(const Abort& abort);
  // Sends control frames that the sockets have not accepted before.
  void tell_rest();
  // Sends a goodbye, and waits until it is sent or the deadline has passed.
  void leave(Deadline deadline);

 private:
  struct Stream {
    std::unique_ptr<Connection> connection;
    Outgoing* sending = nullptr;     // message of the current frame
    std::uint64_t sends_before = 0;  // sent() of the connection before that frame
    // Written frames, with the number of the zero-copy send that they wait for.
    std::deque<std::pair<std::uint64_t, Outgoing*>> unacknowledged;
    std::uint32_t events = 0;  // events registered with epoll
    bool paused = false;       // there is no room for its next frame
    bool open = true;          // more data may arrive
    bool writable = true;
  };
  struct Peer {
    std::vector<Stream> streams;
    std::deque<Outgoing*> small, large;
    std::deque<std::pair<Header, std::vector<std::byte>>> control;
    std::unordered_map<Channel, std::uint64_t> sent;
    std::vector<std::byte> control_in;
    Clock::time_point heard, beaten;
    Clock::time_point suspected{};  // time at which a data stream closed without a goodbye
    std::string cause;
    bool goodbye = false;
    bool left = false;  // goodbye received, and every data stream read to its end
  };

  bool is_control(const Peer& peer, std::size_t stream) const {
    return stream + 1 == peer.streams.size();
  }
  void deliver_to_self(Outgoing& message);
  void pump(int peer);
  void pump_stream(int peer, std::size_t stream);
  bool load_data(Peer& peer, std::size_t stream);
  static bool is_zero_copy(const Peer& peer, std::size_t frame, std::size_t rest);
  bool load_control(Peer& peer);
  void written(Peer& peer, std::size_t stream);
  bool collect(Stream& stream);
  static void end_zero_copy(Stream& stream);
  void push_control(int peer, const Header& header, std::vector<std::byte> payload = {});
  bool resume(int peer);
  void read(int peer, std::size_t stream);
  void read_frames(int peer, std::size_t stream);
  bool begin_frame(int peer, std::size_t stream);
  void end_frame(int peer, std::size_t stream);
  void on_abort(int peer);
  void on_goodbye(int peer);
  void closed(int peer, std::size_t stream);
  void suspect(Peer& peer, const std::string& cause);
  void settle(Peer& peer);
  void watch(int peer, std::size_t stream);
  bool all_sent();
  [[noreturn]] void lost(int peer, const std::string& cause) const;

  const EngineOptions options_;
  Fd epoll_, wake_;
  Mailbox mailbox_;
  Calls calls_;
  std::vector<Peer> peers_;
  bool stopped_ = false;
};

}  // namespace weft::net::internal

// A simulated endpoint's connection to one peer: its streams, the messages that wait for them, and
// how it ends. The last stream is for control frames, the others are for data.
//
// Invariant: frames of a message are given to the streams in order, and no data is sent or received
// after silence(). Belongs to one rank, as its endpoint does (endpoint.h).
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weft/net/internal/mailbox.h"
#include "weft/net/internal/peer_health.h"
#include "weft/net/sim/internal/socket.h"
#include "weft/net/tcp/frame_stream.h"

namespace weft::net::sim::internal {

// A message of a call, which owns it.
struct Outgoing {
  bool complete() const { return next == send.bytes.size() && flying == 0; }

  Send send;
  Channel channel = 0;
  net::internal::Operation* operation = nullptr;
  std::uint64_t number = 0;
  std::size_t next = 0;    // bytes given to streams
  std::size_t flying = 0;  // frames given to streams and not yet written
};

class PeerConnection {
 public:
  struct Ends {
    int rank;
    int peer;
    const Options& options;
  };
  struct Events {
    std::function<void(int stream)> changed;  // a socket, as in socket.h
    std::function<void()> wake;               // the call of the endpoint may go on
  };

  // There are no streams to the own rank.
  PeerConnection(const Ends& ends, Network& network, net::internal::Mailbox& mailbox,
                 Events events);

  void deliver(Packet& packet) { stream(packet.stream).socket->deliver(packet); }
  int streams() const { return static_cast<int>(streams_.size()); }
  // The peer has left the group in order, and all its data has arrived.
  bool left() const { return left_; }

  // ---- out
  // The number of the next message of this channel.
  std::uint64_t next_number(Channel channel) { return sent_[channel]++; }
  // Queues a message, which lives until it is complete(). Throws kPeerLost if the peer has left.
  void send(Outgoing& message);
  void say(net::internal::FrameType type, std::vector<std::byte> payload);
  // Writes what the stream can take.
  void pump(int stream);
  bool all_acknowledged() const;

  // ---- in. They throw the error that a frame or the end of a stream means.
  // Reads what has come. `only_control`: from the control stream only.
  void read(int stream, bool only_control);
  // Reads the streams that waited for room in the mailbox.
  void read_paused();
  // Drops what has come: unread input would turn the close into a reset.
  void drain(int stream);
  // Throws if the peer is lost, and sends a heartbeat when one is due.
  void tick();

  // ---- end
  void silence() { silenced_ = true; }
  // Closes the streams, if all control frames are given to them.
  void close();
  void abandon();
  void reset();

 private:
  struct Stream {
    std::unique_ptr<Socket> socket;
    std::unique_ptr<net::internal::FrameWriter> out;
    std::unique_ptr<net::internal::FrameReader> in;
    Outgoing* sending = nullptr;
    bool paused = false;
    bool open = true;
  };

  Stream& stream(int index) { return streams_[static_cast<std::size_t>(index)]; }
  bool is_control(const Stream& stream) const { return &stream == &streams_.back(); }
  [[noreturn]] void lost(const std::string& cause) const;
  void pump(Stream& stream);
  bool load(Stream& stream);
  void written(Stream& stream);
  void read(Stream& stream);
  bool fill(Stream& stream);
  bool begin_frame(Stream& stream);
  void end_frame(const Stream& stream);
  void on_abort();
  void on_goodbye();
  void closed(Stream& stream);
  void settle();

  Ends ends_;
  Network& network_;
  net::internal::Mailbox& mailbox_;
  Events events_;
  std::vector<Stream> streams_;
  std::deque<Outgoing*> queue_;
  std::deque<std::pair<net::internal::FrameType, std::vector<std::byte>>> control_;
  std::vector<std::byte> control_in_;
  std::unordered_map<Channel, std::uint64_t> sent_;
  net::internal::PeerHealth health_;
  bool goodbye_ = false, left_ = false, silenced_ = false;
};

}  // namespace weft::net::sim::internal

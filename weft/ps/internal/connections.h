// Connections of a server: accepts clients and other servers, and dials other servers. For the
// loop of one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "weft/base/deadline.h"
#include "weft/net/stream/local_socket.h"
#include "weft/net/stream/message_stream.h"
#include "weft/net/stream/polls.h"
#include "weft/net/tcp/handshake_connection.h"
#include "weft/ps/internal/request.h"
#include "weft/ps/view.h"

namespace weft::ps::internal {

// Most bytes of a message.
inline constexpr std::size_t kMaxMessage = std::size_t{1} << 36;
// First message of a connection.
inline constexpr const char* kClientGreeting = "weft ps client 4";
inline constexpr const char* kServerGreeting = "weft ps server 4";

// The roles of the handshake between processes of a parameter server.
net::internal::Identity identity(const std::string& job,
                                 const std::optional<net::internal::Secret>& secret, int rank);

class Connections {
 public:
  using Token = std::uint64_t;  // of an accepted connection
  struct Events {
    std::function<void(Token, const std::string& message)> request;
    std::function<void(Token)> gone;  // of a client
    std::function<void(const std::string& message)> chain;
  };
  struct Listeners {
    net::internal::LocalListener local;
    net::internal::Fd tcp;  // none: this host only
  };
  Connections(Listeners listeners, net::internal::Identity accepts, net::internal::Identity dials,
              Events events);

  void watch(net::internal::Polls& polls);
  // Ends handshakes that are late. Call it at least ten times a second.
  void tend();

  // Answers a client. Does nothing if it has gone.
  void answer(Token token, Answer answer);
  // Memory for a large answer, if the connection has some.
  std::string take_spare(Token token);
  // Memory that the client of this connection shares.
  std::span<std::byte> memory(Token token) const;
  // Sends to another server, and dials it first if needed. Messages to a server that cannot be
  // reached are lost.
  void send(std::uint32_t server, const ServerAddress& address, std::string message);

 private:
  enum class Kind { kUnknown, kClient, kServer };
  struct Accepted {
    net::internal::MessageStream stream;
    net::internal::SharedMemory memory;
    Kind kind = Kind::kUnknown;
  };
  struct Pending {
    UniqueFd local;  // waits for its first byte
    std::unique_ptr<net::internal::HandshakeConnection> shake;
    Deadline deadline;
    std::string where;
    std::optional<std::uint32_t> server;  // dialed
  };
  struct Peer {
    std::optional<net::internal::MessageStream> stream;
    bool under_way = false;
    Deadline again = Deadline::in(std::chrono::nanoseconds(0));
  };
  using PendingAt = std::list<Pending>::iterator;

  void report(const std::string& line);
  void accept_local();
  void accept_tcp();
  void advance_local(PendingAt pending);
  void advance_tcp(PendingAt pending);
  void open(UniqueFd fd, net::internal::SharedMemory memory);
  void serve(Token token);
  void drop(Token token);
  void dial(std::uint32_t server, const ServerAddress& address);
  void greet(Peer& peer, UniqueFd fd);
  void serve_peer(std::uint32_t server);

  Listeners listeners_;
  const net::internal::Identity accepts_, dials_;
  Events events_;
  std::list<Pending> pending_;
  std::map<Token, Accepted> accepted_;
  std::map<std::uint32_t, Peer> peers_;
  Token last_ = 0;
  std::map<std::string, Deadline> reported_;
  Deadline accepts_again_ = Deadline::in(std::chrono::nanoseconds(0));
};

}  // namespace weft::ps::internal

// A client's connection to the server of one shard: finds the server, connects, sends requests
// again after a loss, and takes answers. At most one of connection and handshake is open. For the
// thread of the client.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <string>

#include "weft/base/deadline.h"
#include "weft/net/stream/local_socket.h"
#include "weft/net/stream/message_stream.h"
#include "weft/net/tcp/handshake_connection.h"
#include "weft/ps/client.h"
#include "weft/ps/internal/request.h"
#include "weft/ps/view.h"

namespace weft::ps::internal {

// A request without an answer.
struct Outstanding {
  Request request;
  // Payload of its own; otherwise that of a push is at request.offset in the shared memory.
  std::string payload;
  // Where pulled values go: request.offset and request.bytes in the shared memory.
  std::uint64_t ticket = 0;
};

class ClientLink {
 public:
  struct Settings {
    Directory* directory = nullptr;
    std::uint32_t shard = 0;
    net::internal::Identity identity;
    bool local = true;
    net::internal::SharedMemory* memory = nullptr;  // of the client
  };
  // Called with the request, its answer and the bytes of the answer's payload.
  using OnAnswer = std::function<void(const Outstanding&, const Answer&, std::string_view)>;

  ClientLink(Settings settings, OnAnswer on_answer);

  // Sends it now or as soon as there is a connection.
  void send(Outstanding outstanding);
  bool is_idle() const { return outstanding_.empty(); }
  const Moved& moved() const { return moved_; }

  // Connects if needed, sends and receives what is possible, and checks from time to time that
  // this is still the right server. Never waits.
  void advance();
  // Descriptor to wait for, -1 if none, and the events.
  int fd() const;
  short events() const;
  // True if the shared memory may still be written by a server that this link has given up. The
  // owner renews it, and calls reconnect() on all links.
  bool taints_memory() const { return taints_memory_; }
  // True if this has closed a connection, since its server has the old memory.
  bool reconnect();
  // Why there is no connection, for the message of a timeout.
  std::string trouble() const;

 private:
  // An attempt to connect over TCP.
  struct Handshake {
    std::string where;
    net::internal::HandshakeConnection connection;
    Deadline by;
  };

  void begin();
  void advance_handshake();
  void established(UniqueFd fd, bool is_local);
  void lose(const std::string& why);
  void transmit(const Outstanding& outstanding);
  void take(const std::string& message);
  void check_view();

  const Settings settings_;
  const OnAnswer on_answer_;
  std::list<Outstanding> outstanding_;
  std::optional<net::internal::MessageStream> stream_;
  std::optional<Handshake> handshake_;
  Deadline again_ = Deadline::in(std::chrono::nanoseconds(0));
  Deadline check_ = Deadline::in(std::chrono::nanoseconds(0));
  std::uint64_t view_ = 0;
  Member server_;
  bool is_local_ = false;
  bool taints_memory_ = false;
  Moved moved_;
  std::string trouble_;
};

}  // namespace weft::ps::internal

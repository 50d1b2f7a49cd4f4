// Authenticated connections to the store processes of other nodes: dials, accepts, and makes them
// again when they end. A peer of another job, secret or version is refused with one line.
#pragma once

#include <list>
#include <map>
#include <set>

#include "weft/base/deadline.h"
#include "weft/net/tcp/handshake_connection.h"
#include "weft/store/internal/message.h"
#include "weft/store/internal/message_stream.h"

namespace weft::store::internal {

struct PeerOptions {
  net::internal::Fd listener;  // non-blocking; none: this node has no peers
  std::uint32_t node = 0;
  std::string address;             // at which others reach the listener
  std::vector<std::string> seeds;  // addresses of nodes, of which one suffices
  std::string job;
  std::optional<net::internal::Secret> secret;
};

class PeerLinks {
 public:
  struct Events {
    std::function<void(std::uint32_t node, const Message&)> message;
    std::function<void(std::uint32_t node)> connected;
    std::function<void(std::uint32_t node)> disconnected;
    std::function<void(const std::string&)> trouble;  // why a node cannot be reached
  };
  PeerLinks(PeerOptions options, Events events);

  // The nodes to be connected with, and their addresses. `seeks`: and any of the seeds.
  void want(std::map<std::uint32_t, std::string> nodes, bool seeks);
  // Dials what is due, and ends what is late. Call it at least ten times a second.
  void tend();
  void watch(Polls& polls);
  // Drops the message if there is no connection.
  void send(std::uint32_t node, const Message& message);

 private:
  using HandshakeConnection = net::internal::HandshakeConnection;
  struct Pending {
    HandshakeConnection shake;
    Deadline deadline;
    std::string where;
  };
  struct Link {
    MessageStream stream;
    std::string where;
    bool dialed;         // by this side
    Deadline greets_by;  // while `node` is unknown
    Deadline fresh;      // until then it counts as alive
    std::optional<std::uint32_t> node = {};
  };
  struct Dial {
    Deadline again = Deadline::in(std::chrono::nanoseconds(0));
    int failures = 0;
    bool under_way = false;
  };
  using LinkId = std::uint64_t;

  void accept_all();
  void dial(const std::string& address);
  void advance(std::list<Pending>::iterator pending);
  void finish(std::list<Pending>::iterator pending, const std::string& failure);
  std::string refused(const Pending& pending);
  void open(Pending& pending);
  void serve(LinkId id);
  void greet(LinkId id, std::string_view bytes);
  bool prefers(const Link& link, std::uint32_t node) const;
  void close(LinkId id);
  void report(const std::string& line);

  PeerOptions options_;
  Events events_;
  const net::internal::Identity accepts_as_, dials_as_;
  std::list<Pending> pending_;  // oldest first
  std::map<LinkId, Link> links_;
  std::map<std::uint32_t, LinkId> link_of_;  // by node
  LinkId last_ = 0;
  std::map<std::uint32_t, std::string> wanted_;
  bool seeks_ = false;
  std::map<std::string, Dial> dials_;  // by address
  std::map<std::string, std::uint32_t> node_at_;
  std::map<std::string, Deadline> reported_;
  Deadline accepts_again_ = Deadline::in(std::chrono::nanoseconds(0));
};

}  // namespace weft::store::internal

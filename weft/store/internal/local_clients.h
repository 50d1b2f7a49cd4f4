// Connections of this node's ranks and launcher: requests in, answers out.
#pragma once

#include <map>

#include "weft/base/deadline.h"
#include "weft/store/internal/message_stream.h"
#include "weft/store/request.h"

namespace weft::store::internal {

// Most bytes of a request on the wire.
inline constexpr std::size_t kMaxRequestBytes = kMaxValueBytes + kMaxKeyBytes + 1024;

// Accepts the next connection of this user or of root, non-blocking. Others of this host may
// connect to an abstract socket; they are refused. None: errno says why.
UniqueFd accept_own_user(int listener);

class LocalClients {
 public:
  using Token = std::uint64_t;  // of a connection
  struct Events {
    std::function<void(Token, const Request&)> request;
    std::function<void(Token)> gone;
  };
  // `listener`: a listening Unix socket, non-blocking.
  LocalClients(UniqueFd listener, Events events);

  void watch(Polls& polls);
  // Does nothing if the client has ended.
  void answer(Token token, const Response& response);

 private:
  void accept_all();
  void serve(Token token);
  void drop(Token token);

  UniqueFd listener_;
  Events events_;
  std::map<Token, MessageStream> clients_;
  Token last_ = 0;
  Deadline accepts_again_ = Deadline::in(std::chrono::nanoseconds(0));
};

}  // namespace weft::store::internal

// A connection during the handshake (handshake.h), over a non-blocking socket.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "weft/net/tcp/handshake.h"
#include "weft/net/tcp/socket.h"

namespace weft::net::internal {

class HandshakeConnection {
 public:
  enum class Result {
    kWaits,        // for the socket: see is_connecting()
    kEstablished,  // take_fd() is a connection to peer()
    kRefused,      // verdict() says why: by this side if it accepted, by the peer if it dialed
    kLost          // failure() says why a dialed connection failed
  };

  // An accepted connection.
  explicit HandshakeConnection(Fd fd) : fd_(std::move(fd)), state_(State::kHello) {}
  // A connection that begin_connect() began, to a peer's stream.
  HandshakeConnection(Fd fd, int peer, int stream)
      : fd_(std::move(fd)), state_(State::kConnecting), peer_(peer), stream_(stream) {}

  // Continues when the socket is ready. `is_taken`, which may be empty, tells whether there is a
  // connection to the peer's stream already. Reads at most the bytes of the expected message.
  Result advance(const Identity& me, const std::function<bool(int peer, int stream)>& is_taken);

  int fd() const { return fd_.get(); }
  Fd take_fd() { return std::move(fd_); }
  // True: the socket must become writable, else readable.
  bool is_connecting() const { return state_ == State::kConnecting; }
  // True if the peer began the connection.
  bool is_accepted() const { return state_ == State::kHello || state_ == State::kProof; }
  int peer() const { return peer_; }
  int stream() const { return stream_; }
  Verdict verdict() const { return verdict_; }
  const std::string& failure() const { return failure_; }

 private:
  enum class State { kConnecting, kHello, kReply, kProof, kDone };  // the expected message
  enum class Input { kComplete, kPartial, kClosed };

  Result advance_accepted(const Identity& me, const std::function<bool(int, int)>& is_taken);
  std::optional<Result> take_hello(const Identity& me,
                                   const std::function<bool(int, int)>& is_taken);
  Result advance_dialed(const Identity& me);
  Input receive(std::size_t want);
  bool write(std::span<const std::byte> bytes) const;
  Result refuse(Verdict verdict);

  Fd fd_;
  State state_;
  int peer_ = -1;
  int stream_ = -1;
  Hello hello_{};
  Reply reply_{};
  std::array<std::byte, kHelloBytes> buffer_{};
  std::size_t have_ = 0;
  Verdict verdict_ = Verdict::kWelcome;
  std::string failure_;
};

}  // namespace weft::net::internal

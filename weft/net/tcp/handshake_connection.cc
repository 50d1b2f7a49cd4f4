#include "weft/net/tcp/handshake_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace weft::net::internal {

using IsTaken = std::function<bool(int peer, int stream)>;

HandshakeConnection::Result HandshakeConnection::advance(const Identity& me,
                                                         const IsTaken& is_taken) {
  return is_accepted() ? advance_accepted(me, is_taken) : advance_dialed(me);
}

// Reads until `want` bytes are available, never more than the expected message.
HandshakeConnection::Input HandshakeConnection::receive(std::size_t want) {
  while (have_ < want) {
    const auto n = ::recv(fd_.get(), buffer_.data() + have_, want - have_, 0);
    if (n > 0) {
      have_ += static_cast<std::size_t>(n);
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    const bool waits = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    return waits ? Input::kPartial : Input::kClosed;
  }
  have_ = 0;
  return Input::kComplete;
}

// Messages fit into an empty socket buffer. A socket that does not accept them is closed.
bool HandshakeConnection::write(std::span<const std::byte> bytes) const {
  return ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

HandshakeConnection::Result HandshakeConnection::refuse(Verdict verdict) {
  verdict_ = verdict;
  return Result::kRefused;
}

// Nothing if the hello is valid and was answered.
std::optional<HandshakeConnection::Result> HandshakeConnection::take_hello(
    const Identity& me, const IsTaken& is_taken) {
  const Input input = receive(kHelloBytes);
  if (input != Input::kComplete) {
    // Foreign connections are detected by their first bytes, without waiting for the rest.
    const bool stranger =
        have_ >= kMagicBytes && !has_hello_magic(std::span(buffer_).first<kMagicBytes>());
    return stranger || input == Input::kClosed ? refuse(Verdict::kMalformed) : Result::kWaits;
  }
  hello_ = buffer_;
  const HelloCheck check = check_hello(me, hello_);
  const bool taken =
      check.verdict == Verdict::kWelcome && is_taken && is_taken(check.from, check.stream);
  const Verdict verdict = taken ? Verdict::kTaken : check.verdict;
  reply_ = make_reply(me, hello_, verdict, fresh_nonce());
  const bool written = write(reply_);
  if (verdict != Verdict::kWelcome) return refuse(verdict);
  if (!written) return Result::kLost;
  peer_ = check.from;
  stream_ = check.stream;
  state_ = State::kProof;
  return std::nullopt;
}

HandshakeConnection::Result HandshakeConnection::advance_accepted(const Identity& me,
                                                                  const IsTaken& is_taken) {
  if (state_ == State::kHello) {
    if (const auto result = take_hello(me, is_taken)) return *result;
  }
  const Input input = receive(kProofBytes);
  if (input == Input::kPartial) return Result::kWaits;
  if (input == Input::kClosed) return refuse(Verdict::kMalformed);
  const bool proved = check_proof(me, hello_, reply_, std::span(buffer_).first<kProofBytes>());
  const Verdict verdict = !proved                                ? Verdict::kSecret
                          : is_taken && is_taken(peer_, stream_) ? Verdict::kTaken
                                                                 : Verdict::kWelcome;
  const bool written = write(make_done(verdict));
  if (verdict != Verdict::kWelcome) return refuse(verdict);
  return written ? Result::kEstablished : Result::kLost;
}

HandshakeConnection::Result HandshakeConnection::advance_dialed(const Identity& me) {
  failure_ = "the connection was closed";
  const auto waits_if = [](bool alive) { return alive ? Result::kWaits : Result::kLost; };
  if (state_ == State::kConnecting) {
    int error = 0;
    socklen_t length = sizeof(error);
    ::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) {
      failure_ = errno_text(error);
      return Result::kLost;
    }
    hello_ = make_hello(me, peer_, stream_, fresh_nonce());
    state_ = State::kReply;
    return waits_if(write(hello_));
  }
  if (state_ == State::kReply) {
    const Input input = receive(kReplyBytes);
    if (input != Input::kComplete) return waits_if(input == Input::kPartial);
    std::copy_n(buffer_.begin(), kReplyBytes, reply_.begin());
    const Verdict verdict = check_reply(me, hello_, reply_);
    // A peer without a valid proof gets no proof from this side, only the message that the secrets
    // differ.
    if (verdict == Verdict::kSecret) write(Proof{});
    if (verdict != Verdict::kWelcome) return refuse(verdict);
    state_ = State::kDone;
    return waits_if(write(make_proof(me, hello_, reply_)));
  }
  const Input input = receive(kDoneBytes);
  if (input != Input::kComplete) return waits_if(input == Input::kPartial);
  const Verdict verdict = check_done(std::span(buffer_).first<kDoneBytes>());
  return verdict == Verdict::kWelcome ? Result::kEstablished : refuse(verdict);
}

}  // namespace weft::net::internal

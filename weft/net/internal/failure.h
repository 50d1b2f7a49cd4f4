// The first error of an endpoint, and the errors that pending and later calls get.
#pragma once

#include <exception>
#include <optional>
#include <span>
#include <string>

#include "weft/net/channels.h"
#include "weft/net/endpoint.h"

namespace weft::net::internal {

// Two ranks made different calls: the same error on every rank.
class MismatchError : public Error {
 public:
  explicit MismatchError(const Error& error) : Error(error) {}
};

// Another rank has ended the group. The ranks that learn of it pass it on: one of them may leave
// before the others know.
class AbortedError : public Error {
 public:
  explicit AbortedError(const Error& error) : Error(error) {}
};

// The error with the operation that the calling thread is in (observe/position) in place of the
// name of an endpoint's call, "exchange". For errors of this thread's own call.
Error in_operation(const Error& error);

// Has no lock: the owner guards it.
class Failure {
 public:
  explicit Failure(int rank) : rank_(rank) {}

  // The first call wins and returns true. `by_caller`: set by Endpoint::fail().
  bool latch(const Error& error, bool by_caller);

  bool latched() const { return error_.has_value(); }
  const std::optional<Error>& error() const { return error_; }
  // The latest time if there is no error.
  Deadline::Clock::time_point at() const { return at_; }

  // Throws for a pending call: the error itself, or kAborted if it came from fail() or is a timeout
  // of another call.
  [[noreturn]] void end_pending(const char* operation) const;
  // Throws for a new call: kPeerLost if a peer is lost, else kAborted. Does nothing if there is no
  // error.
  void refuse(const char* operation) const;
  // Like refuse(), for a collective call. If no call of this rank has thrown the latched mismatch
  // yet, throws it, since it most likely concerns this call.
  void refuse_call(const char* operation) const;

 private:
  [[noreturn]] void abort(const char* operation) const;

  int rank_;
  bool by_caller_ = false;
  mutable bool unseen_mismatch_ = false;
  std::optional<Error> error_;
  Deadline::Clock::time_point at_ = Deadline::Clock::time_point::max();
};

// Converts the error of a call on `rank` for the other ranks: the same lost peer or mismatch, else
// kAborted naming the failed rank.
Error seen_by_others(const Error& error, int rank);

// Of a wait for any message, when all other ranks have left, and after its deadline.
[[noreturn]] void throw_alone(int rank);
[[noreturn]] void throw_no_message(int rank, Channel channel);
// The peer of the context has left, and the operation still needs it.
[[noreturn]] void throw_left(const Error::Context& context);

// The timeout of an exchange; it names the peers of the transfers that are not complete.
template <class Receipts, class Outgoing>
Error exchange_timeout(int rank, Channel channel, const Receipts& receipts,
                       const Outgoing& outgoing) {
  std::string missing;
  int culprit = -1;
  const auto add = [&](const char* what, int peer) {
    if (culprit < 0) culprit = peer;
    missing += (missing.empty() ? "" : ", ") + std::string(what) + std::to_string(peer);
  };
  for (const auto& receipt : receipts) {
    if (!receipt.done) add("from rank ", receipt.recv.peer);
  }
  for (const auto& message : outgoing) {
    if (!message.complete()) add("to rank ", message.send.peer);
  }
  return {Errc::kTimeout,
          "not complete before the deadline" + on_channel(channel) + ": " + missing,
          {"exchange", rank, culprit}};
}

// Throws if a peer of which a message is awaited has left.
template <class Receipts, class HasLeft>
void check_left(int rank, const Receipts& receipts, const HasLeft& has_left) {
  for (const auto& receipt : receipts) {
    const int peer = receipt.recv.peer;
    if (receipt.done || !has_left(peer)) continue;
    throw Error(
        Errc::kPeerLost,
        "rank " + std::to_string(peer) + " left the group while a message from it was awaited",
        {"exchange", rank, peer});
  }
}

// Throws Error(kInvalidArgument) unless every peer is in [0, world).
void check_peers(int world, std::span<const Send> sends, std::span<const Recv> recvs);

}  // namespace weft::net::internal

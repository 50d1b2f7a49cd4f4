// The first error of an endpoint, and what it means for the calls that are under way and for those
// that come later.
#pragma once

#include <optional>
#include <span>

#include "weft/net/endpoint.h"

namespace weft::net::internal {

// Two ranks that mean different things: the same error on every rank.
class MismatchError : public Error {
 public:
  explicit MismatchError(const Error& error) : Error(error) {}
};

// Not locked: the owner guards it.
class Failure {
 public:
  explicit Failure(int rank) : rank_(rank) {}

  // The first call wins and gives true. `by_caller`: through Endpoint::fail().
  bool latch(const Error& error, bool by_caller);

  bool latched() const { return error_.has_value(); }
  const std::optional<Error>& error() const { return error_; }

  // For a call that was under way: the error itself; kAborted where it came from fail(), and where
  // it is a timeout of another call.
  [[noreturn]] void end_pending(const char* operation) const;
  // For a call that begins: kPeerLost where a peer is lost, else kAborted. Does nothing while there
  // is no error.
  void refuse(const char* operation) const;
  // The same for a collective call: a mismatch that no call of this rank has seen is most likely
  // its own.
  void refuse_call(const char* operation) const;

 private:
  [[noreturn]] void abort(const char* operation) const;

  int rank_;
  bool by_caller_ = false;
  mutable bool unseen_mismatch_ = false;
  std::optional<Error> error_;
};

// What the error of a call on `rank` is to the other ranks: the same lost peer, the same mismatch,
// else kAborted naming the rank that failed.
Error seen_by_others(const Error& error, int rank);

// Throws Error(kInvalidArgument) unless every peer is in [0, world).
void check_peers(int world, std::span<const Send> sends, std::span<const Recv> recvs);

}  // namespace weft::net::internal

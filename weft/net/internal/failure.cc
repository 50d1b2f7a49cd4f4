#include "weft/net/internal/failure.h"

#include <algorithm>

namespace weft::net::internal {

bool Failure::latch(const Error& error, bool by_caller) {
  if (error_) return false;
  error_ = error;
  by_caller_ = by_caller;
  unseen_mismatch_ = dynamic_cast<const MismatchError*>(&error) != nullptr;
  return true;
}

void Failure::abort(const char* operation) const {
  throw Error(Errc::kAborted, std::string("the group failed before: ") + error_->what(), {operation, rank_, error_->context().peer});
}

void Failure::lost(const char* operation) const {
  throw Error(Errc::kPeerLost, error_->message(), {operation, rank_, error_->context().peer});
}

void Failure::end_pending(const char* operation) const {
  if (by_caller_ || error_->code() == Errc::kTimeout) abort(operation);
  unseen_mismatch_ = false;
  throw Error(error_->code(), error_->message(), {operation, rank_, error_->context().peer});
}

void Failure::refuse_call(const char* operation) const {
  if (!error_) return;
  if (unseen_mismatch_) end_pending(operation);
  if (error_->code() == Errc::kPeerLost && !by_caller_) lost(operation);
  abort(operation);
}

void Failure::refuse(const char* operation, std::span<const Send> sends, std::span<const Recv> recvs) const {
  if (!error_) return;
  const auto needs = [&](const auto& transfer) { return transfer.peer == error_->context().peer; };
  const bool needed = std::any_of(sends.begin(), sends.end(), needs) || std::any_of(recvs.begin(), recvs.end(), needs);
  if (error_->code() == Errc::kPeerLost && !by_caller_ && needed) lost(operation);
  abort(operation);
}

Error seen_by_others(const Error& error, int rank) {
  if (error.code() == Errc::kPeerLost || dynamic_cast<const MismatchError*>(&error) != nullptr) return error;
  return Error(Errc::kAborted, "rank " + std::to_string(rank) + " failed: " + error.what(), {"", -1, rank});
}

void check_peers(int world, std::span<const Send> sends, std::span<const Recv> recvs) {
  const auto check = [&](int peer) {
    WEFT_REQUIRE(peer >= 0 && peer < world, "peer " + std::to_string(peer) + " is not a rank of this group of " + std::to_string(world));
  };
  for (const Send& send : sends) check(send.peer);
  for (const Recv& recv : recvs) check(recv.peer);
}

}  // namespace weft::net::internal

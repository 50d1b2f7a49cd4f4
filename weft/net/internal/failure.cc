#include "weft/net/internal/failure.h"

#include "weft/observe/position/position.h"

namespace weft::net::internal {

Error in_operation(const Error& error) {
  const auto& [call, rank, peer] = error.context();
  const observe::internal::Writer& thread = observe::internal::writer;
  const bool is_call = call == "exchange" || call == "await_any" || call == "flow";
  if (!is_call || !thread.in_operation || thread.slot == nullptr) return error;
  const observe::ShortName name = thread.slot->operation.read().name;
  return name.empty() ? error : Error(error.code(), error.message(), {name.str(), rank, peer});
}

bool Failure::latch(const Error& error, bool by_caller) {
  if (error_) return false;
  error_ = in_operation(error);
  at_ = Deadline::Clock::now();
  by_caller_ = by_caller;
  unseen_mismatch_ = dynamic_cast<const MismatchError*>(&error) != nullptr;
  return true;
}

void Failure::abort(const char* operation) const {
  throw Error(Errc::kAborted, std::string("the group failed before: ") + error_->what(),
              {operation, rank_, error_->context().peer});
}

void Failure::end_pending(const char* operation) const {
  if (by_caller_ || error_->code() == Errc::kTimeout) abort(operation);
  unseen_mismatch_ = false;
  throw Error(error_->code(), error_->message(), {operation, rank_, error_->context().peer});
}

void Failure::refuse(const char* operation) const {
  if (!error_) return;
  if (error_->code() == Errc::kPeerLost) end_pending(operation);
  abort(operation);
}

void Failure::refuse_call(const char* operation) const {
  if (error_ && unseen_mismatch_) end_pending(operation);
  refuse(operation);
}

Error seen_by_others(const Error& error, int rank) {
  if (error.code() == Errc::kPeerLost || dynamic_cast<const MismatchError*>(&error) != nullptr)
    return error;
  return Error(Errc::kAborted,
               "rank " + std::to_string(rank) + " failed: " + in_operation(error).what(),
               {"", -1, rank});
}

void throw_alone(int rank) {
  throw Error(Errc::kPeerLost, "every other rank left the group while a message was awaited",
              {"await_any", rank, rank == 0 ? 1 : 0});
}

void throw_no_message(int rank, Channel channel) {
  throw Error(Errc::kTimeout, "no message" + on_channel(channel) + " before the deadline",
              {"await_any", rank});
}

void throw_left(const Error::Context& context) {
  throw Error(Errc::kPeerLost,
              "rank " + std::to_string(context.peer) + " left the group while it was still needed",
              context);
}

void check_peers(int world, std::span<const Send> sends, std::span<const Recv> recvs) {
  const auto check = [&](int peer) {
    WEFT_REQUIRE(peer >= 0 && peer < world, "peer " + std::to_string(peer) +
                                                " is not a rank of this group of " +
                                                std::to_string(world));
  };
  for (const Send& send : sends) check(send.peer);
  for (const Recv& recv : recvs) check(recv.peer);
}

}  // namespace weft::net::internal

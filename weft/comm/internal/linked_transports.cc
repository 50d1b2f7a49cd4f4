// Who notices a failure, and who tells whom:
//
//   the host's memory fails    settle(): ends the endpoint, and tells the other hosts
//   the endpoint fails         settle(): ends the host's memory
//   this rank aborts           fail(): ends both, and all ranks are told
//   this rank leaves           stop(): ends both; other hosts are not told
//
// A call waits in one transport at a time, and does not see that the other one has failed. So the
// watcher calls settle() every 50 ms, which ends the transport in which the call waits.
//
// first_ is set once, under mutex_, and everything later cites it. mutex_ is held while a transport
// is ended, so that a second failure cannot overtake the first. It is not held during a call.
#include "weft/comm/internal/linked_transports.h"

#include "weft/comm/internal/job_ranks.h"
#include "weft/observe/position/position.h"

namespace weft::comm::internal {
namespace {

using namespace std::chrono_literals;

constexpr auto kPeriod = 50ms;
constexpr net::Channel kTell = net::Channel{1} << 58;
// A failure that LinkedTransports sets on the host names ranks of the group. Failures that the host
// detects itself name ranks of the host.
constexpr int kOfGroup = 1 << 20;

bool telling(Errc code) {
  return code == Errc::kPeerLost || code == Errc::kTimeout || code == Errc::kInvalidArgument;
}

}  // namespace

LinkedTransports::LinkedTransports(std::shared_ptr<net::Host> host,
                                   std::shared_ptr<net::Endpoint> endpoint, HostMap map)
    : host_(std::move(host)),
      endpoint_(std::move(endpoint)),
      map_(std::move(map)),
      watcher_([this] { watch(); }) {}

LinkedTransports::~LinkedTransports() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  closing_changed_.notify_all();
  watcher_.join();
}

void LinkedTransports::refuse(const char* operation) {
  const std::lock_guard lock(mutex_);
  if (!first_) return;
  const bool lost = first_->code() == Errc::kPeerLost;
  throw Error(lost ? Errc::kPeerLost : Errc::kAborted, "the group has failed: " + first_->message(),
              {operation, map_.rank, first_->context().peer});
}

void LinkedTransports::end(const char* operation, const Error& error) {
  settle();
  const std::lock_guard lock(mutex_);
  if (!first_) throw error;  // the error is in the call itself
  throw Error(telling(first_->code()) ? first_->code() : Errc::kAborted, first_->message(),
              {operation, map_.rank, first_->context().peer});
}

void LinkedTransports::fail(const Error& why) noexcept {
  const std::lock_guard lock(mutex_);
  if (!first_) first_ = why;
  endpoint_->abort(why);  // first: a rank of this host that knows may leave before others know why
  fail_host(Error(why.code(), "rank " + std::to_string(map_.rank) + " failed: " + why.what(),
                  why.context()));
}

void LinkedTransports::stop(const Error& why) noexcept {
  const std::lock_guard lock(mutex_);
  if (!first_) first_ = why;
  fail_host(why);
  endpoint_->fail(why);
}

void LinkedTransports::conclude(const Error& why) noexcept {
  const std::lock_guard lock(mutex_);
  if (!first_) first_ = why;
  endpoint_->fail(why);
}

void LinkedTransports::fail_host(const Error& why) noexcept {
  host_->fail(Error(why.code(), why.message(),
                    {why.context().operation, why.context().rank, kOfGroup + why.context().peer}));
}

// False for a failure that a rank of this host has set, and has told the other hosts if they have
// to know.
bool LinkedTransports::found_by_host() const {
  const auto failure = host_->failure();
  // kOfGroup - 1 stands for a failure of the group that names no peer (-1).
  return failure && failure->context().peer < kOfGroup - 1;
}

std::optional<Error> LinkedTransports::host_failure() const {
  const auto failure = host_->failure();
  if (!failure) return std::nullopt;
  const auto& [operation, rank, peer] = failure->context();
  if (peer >= kOfGroup - 1)
    return Error(failure->code(), failure->message(), {operation, map_.rank, peer - kOfGroup});
  const int lost = peer >= 0 ? map_.members()[static_cast<std::size_t>(peer)] : -1;
  return Error(failure->code(), rename_ranks(failure->message(), map_.members(), ""),
               {operation, map_.rank, lost});
}

void LinkedTransports::settle() {
  const std::lock_guard lock(mutex_);
  if (first_) return;
  if (const auto failure = host_failure()) {
    first_ = failure;
    // A wait of zero for the lost rank tells the other hosts about it: kPeerLost if the endpoint
    // knows of the loss, else a timeout of the operation.
    const bool is_own = found_by_host();
    const auto& [operation, rank, peer] = failure->context();
    if (failure->code() == Errc::kPeerLost && peer >= 0 && peer != map_.rank) {
      const observe::OperationScope here({.name = observe::ShortName(operation)});
      try {
        endpoint_->recv(peer, kTell, {}, Deadline::in(0s));
      } catch (const Error&) {
        // Expected: the failure has been passed on.
      }
    }
    if (is_own) {
      endpoint_->abort(*failure);
    } else {
      endpoint_->fail(*failure);
    }
  } else if (const auto other = endpoint_->failure()) {
    first_ = other;
    fail_host(*other);
  }
}

void LinkedTransports::leave() {
  settle();
  host_->await_untouched();
}

void LinkedTransports::watch() {
  std::unique_lock lock(mutex_);
  while (!closing_changed_.wait_for(lock, kPeriod, [this] { return closing_; }) && !first_) {
    lock.unlock();
    settle();
    lock.lock();
  }
}

}  // namespace weft::comm::internal

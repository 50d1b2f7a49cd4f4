// The group's life, messages and barriers; the collectives are in weft_collectives.cc.
//
// Threads: any thread may call. calls.h says which thread runs an operation. A body that runs later
// holds its tensors itself, since the caller may drop them.
//
// The end of a group (destructor):
//   1. The posted collectives run to their end: other ranks wait for this rank in them.
//   2. If this rank gives the group up because of an error in a related group, the peers get that
//      error. It comes first, since the first failure of an endpoint is the one that counts.
//   3. Messages that no peer has matched are given up, which ends the threads that wait in them.
//   4. The threads end, then the device backend, then the members in reverse order. So nothing uses
//      the engine when it is destroyed.
//
// A forked child has a copy of the group but none of its threads. It would wait for them forever,
// so it leaves all of it as it is.
#include "weft/comm/internal/weft_backend.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "weft/base/log.h"
#include "weft/comm/backend.h"
#include "weft/comm/internal/device_call.h"
#include "weft/comm/internal/meeting.h"
#include "weft/comm/internal/tensor_data.h"

namespace weft::comm::internal {
namespace {

std::span<std::byte> bytes_of(const Dense& data) {
  return {static_cast<std::byte*>(data.data()), data.bytes()};
}

std::atomic<AroundWait> around_wait = nullptr;

}  // namespace

WeftBackend::WeftBackend(std::unique_ptr<Engine> engine, int rank, int size,
                         std::chrono::milliseconds timeout, Origin origin)
    : Backend(rank, size),
      engine_(std::move(engine)),
      options_(c10::make_intrusive<Options>("weft", timeout)),
      origin_(std::move(origin)),
      member_(origin_.related ? std::make_unique<RelatedGroups::Member>(origin_.related, *engine_,
                                                                        origin_.job_ranks)
                              : nullptr),
      causes_(member_.get(), origin_.job_ranks),
      monitored_(rank, size),
      calls_(std::make_unique<Calls>(
          Calls::Context{.engine = *engine_,
                         .causes = causes_,
                         .rank = rank,
                         .size = size,
                         .torch_name = [this] { return getGroupUid(); },
                         .abort = [this](const Error& why) { abort_with(why); }})) {}

WeftBackend::~WeftBackend() {
  if (!calls_->is_in_its_process()) {  // a forked child has no threads and is no rank of the group
    static_cast<void>(calls_.release());
    static_cast<void>(member_.release());
    static_cast<void>(engine_.release());
    static_cast<void>(devices_.release());
    return;
  }
  const auto end = [this] {
    try {
      calls_->finish();
    } catch (const Error& error) {  // no thread is left to wait with
      engine_->fail(error);
    }
    const bool given_up = std::uncaught_exceptions() > 0 || engine_->endpoint().failure();
    if (const auto cause = !member_   ? std::nullopt
                           : given_up ? member_->why_given_up()
                                      : member_->cause())
      engine_->fail(*cause);
    if (calls_->has_messages())
      engine_->endpoint().fail(Error(Errc::kAborted, "the group has ended"));
    calls_.reset();
    try {
      if (devices_) devices_->shutdown();
    } catch (const std::exception& error) {  // NCCL's; a destructor must not throw
      log_warn(std::string("the device backend did not shut down: ") + error.what());
    }
  };
  if (const AroundWait around = around_wait.load()) {
    around(end);
  } else {
    end();
  }
}

void WeftBackend::name_group(const std::string& name) {
  calls_->name_group(name);
  if (net::Host* const shared = host()) shared->name_group(name);
}

c10::intrusive_ptr<c10d::Backend::Options> WeftBackend::getBackendOptions() { return options_; }

WeftBackend::BackendPtr WeftBackend::split(const StorePtr& store, const std::vector<int>& ranks,
                                           const c10::intrusive_ptr<Options>& options) {
  WEFT_REQUIRE(origin_.make, "this group was made without a store and does not support subgroups");
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) return nullptr;
  auto made = origin_.make({store, ranks, static_cast<int>(mine - ranks.begin()),
                            options ? bounded_timeout(options->timeout) : timeout()});
  note(*made, options);
  return made;
}

#ifdef C10D_BACKEND_HAS_RECONFIGURE
WeftBackend::BackendPtr WeftBackend::merge(const StorePtr& store,
                                           const c10::intrusive_ptr<Options>& options,
                                           const int& rank, const int& size) {
  WEFT_REQUIRE(origin_.merges, "this group was made without a store and cannot be merged");
  auto made = origin_.make({store, all_ranks(size), rank,
                            options ? bounded_timeout(options->timeout) : timeout(), true});
  note(*made, options);
  return made;
}
#endif

void WeftBackend::note(c10d::Backend& made, const c10::intrusive_ptr<Options>& options) {
  if (!options) return;
  made.setGroupUid(options->group_name);
  made.getBackendOptions()->group_name = options->group_name;
  made.getBackendOptions()->global_ranks_in_group = options->global_ranks_in_group;
}

WeftBackend::WorkPtr WeftBackend::send(Tensors& tensors, int peer, int tag) {
  const at::Tensor tensor = only(tensors, "send");
  if (auto* const devices = device_backend(tensor)) {
    Tensors dense = dense_of(tensors);
    return devices->send(dense, peer, tag);
  }
  WEFT_REQUIRE(peer >= 0 && peer < size_, "send: rank " + std::to_string(peer) +
                                              " is not in the group of " + std::to_string(size_));
  const Shown shown{c10d::OpType::SEND, "weft:send", tensors, tensors};
  return calls_->message(shown, peer, tag, timeout(), [this, tensor, peer, tag](Deadline never) {
    const Dense data(tensor, Dense::kIn);
    engine_->endpoint().send(peer, channel_of(tag), bytes_of(data), never);
    return -1;
  });
}

WeftBackend::WorkPtr WeftBackend::recv(Tensors& tensors, int peer, int tag) {
  const at::Tensor tensor = only(tensors, "recv");
  if (auto* const devices = device_backend(tensor)) {
    // With a copy of the result, the caller's stream would wait for the message. So would sends
    // that are called later.
    WEFT_REQUIRE(dense_of(tensor).is_same(tensor),
                 "recv: over NCCL the tensor must be contiguous; receive into a contiguous one");
    return devices->recv(tensors, peer, tag);
  }
  WEFT_REQUIRE(peer >= 0 && peer < size_, "recv: rank " + std::to_string(peer) +
                                              " is not in the group of " + std::to_string(size_));
  require_writable("recv", tensors);
  const Shown shown{c10d::OpType::RECV, "weft:recv", tensors, tensors};
  return calls_->message(
      shown, peer, tag, timeout(),
      [this, tensor, peer, tag, named = named_.post(tag, peer)](Deadline never) mutable {
        const Dense data(tensor, Dense::kOut);
        engine_->endpoint().recv(peer, channel_of(tag), bytes_of(data), never);
        // The message is taken. A receive from any peer may have the next one, also while this one
        // copies.
        named.reset();
        data.write_back();
        return peer;
      });
}

WeftBackend::WorkPtr WeftBackend::recvAnysource(Tensors& tensors, int tag) {
  const at::Tensor tensor = only(tensors, "recv");
  WEFT_REQUIRE(device_backend(tensor) == nullptr,
               "recv: over NCCL a tensor on a device is received from one rank, not from any; name "
               "the rank");
  require_writable("recv", tensors);
  const Shown shown{c10d::OpType::RECVANYSOURCE, "weft:recvAnySource", tensors, tensors};
  return calls_->message(shown, -1, tag, timeout(), [this, tensor, tag](Deadline never) {
    const Dense data(tensor, Dense::kOut);
    const int peer = engine_->endpoint().recv_any(channel_of(tag), bytes_of(data), never,
                                                  [&](int of) { return !named_.has(tag, of); });
    data.write_back();
    return peer;
  });
}

WeftBackend::WorkPtr WeftBackend::barrier(const c10d::BarrierOptions& options) {
  const How how = this->how(options);
  return collective({c10d::OpType::BARRIER, "weft:barrier", {}, {}}, how, [this, how] {
    engine_->run(schedule::Collective::kBarrier, {.timeout = how.timeout});
  });
}

void WeftBackend::throw_loss() {
  constexpr const char* kName = "monitored_barrier";
  const auto loss = loss_in(*engine_);
  if (!loss) return;
  const Error error(loss->code(), loss->message(), {kName, rank_, loss->context().peer});
  std::rethrow_exception(causes_.of(std::make_exception_ptr(error), kName));
}

void WeftBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  WEFT_REQUIRE(origin_.store, "monitored_barrier: this group was made without a store");
  calls_->count_other();
  const auto limit =
      options.timeout == c10d::kUnsetTimeout ? timeout() : bounded_timeout(options.timeout);
  // The barrier may be called to find out why a group has ended. But nobody waits for a rank that
  // is lost, or for ranks that somebody tells to stop meanwhile.
  const auto before = loss_in(*engine_);
  const bool had_ended = before && before->code() == Errc::kAborted;
  monitored_.run(*origin_.store, limit, wait_all_ranks, [&] {
    if (!had_ended) throw_loss();
  });
}

void WeftBackend::setTimeout(std::chrono::milliseconds timeout) {
  std::atomic_ref(options_->timeout).store(timeout, std::memory_order_relaxed);
  if (devices_) devices_->setTimeout(timeout);
}

Traffic WeftBackend::traffic() const {
  Traffic moved = member_ ? member_->traffic() : engine_->traffic();
  moved.is_complete = moved.is_complete && !devices_;
  return moved;
}

void WeftBackend::abort_with(const Error& why) noexcept {
  if (!calls_->is_in_its_process()) return;  // the group is that of the parent
  engine_->fail(why);
  abort_devices();
  // The caller may free what peers read and write.
  if (net::Host* const shared = host()) shared->await_untouched();
}

void WeftBackend::stop() noexcept {
  if (!calls_->is_in_its_process()) return;
  engine_->stop(Error(Errc::kAborted, "rank " + std::to_string(rank_) + " has left the group"));
  abort_devices();
}

void WeftBackend::abort_devices() noexcept {
  if (!devices_) return;
  try {
    devices_->abort();
  } catch (const std::exception& error) {
    log_debug("the device's backend cannot be aborted", {{"why", error.what()}});
  }
}

}  // namespace weft::comm::internal

void weft::comm::set_around_wait(AroundWait around) { internal::around_wait = around; }

#include "weft/comm/internal/weft_backend.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "weft/base/caught/caught.h"
#include "weft/base/json/error_file.h"
#include "weft/base/log.h"
#include "weft/base/process/id.h"
#include "weft/comm/backend.h"
#include "weft/comm/internal/staging.h"
#include "weft/comm/internal/tensor_data.h"
#include "weft/net/channels.h"
#include "weft/observe/trace.h"

// TaskQueues, messages, barriers and the group's life; the collectives are in weft_collectives.cc.
namespace weft::comm::internal {
namespace {

constexpr std::uint64_t kCollectiveQueue = TaskQueues::kFirst;
constexpr std::uint64_t kSendQueue = std::uint64_t{1} << 60, kRecvQueue = std::uint64_t{2} << 60,
                        kAnyQueue = std::uint64_t{3} << 60;

std::uint64_t queue_of(std::uint64_t direction, int peer, int tag) {
  return direction |
         (static_cast<std::uint64_t>(static_cast<std::uint32_t>(peer)) << 32 &
          ((std::uint64_t{1} << 60) - 1)) |
         static_cast<std::uint32_t>(tag);
}

// Nobody sends on it.
constexpr net::Channel kExpired = (net::Channel{1} << 58) + 1;

net::Channel channel_of(int tag) { return net::kTags + static_cast<std::uint32_t>(tag); }

// Made once, because a name costs more than the rest of a position.
const auto collective_names = [] {
  std::array<observe::ShortName, static_cast<std::size_t>(schedule::Collective::kBarrier) + 1> all;
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = observe::ShortName(schedule::to_string(static_cast<schedule::Collective>(i)));
  return all;
}();
constexpr observe::ShortName kSendName = "send", kRecvName = "recv";

// A sparse tensor counts with its values.
std::uint64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  std::uint64_t bytes = 0;
  for (const at::Tensor& tensor : tensors)
    bytes += tensor.is_sparse() ? tensor._values().nbytes() : tensor.nbytes();
  return bytes;
}

// Records an operation on its caller's timeline, whichever thread runs it.
class Traced {
 public:
  explicit Traced(const Shown& shown) : title_(shown.title) {
    observe::Trace* const trace = observe::Trace::current();
    if (trace == nullptr || !trace->recording()) return;
    trace_ = trace;
    bytes_ = static_cast<std::int64_t>(bytes_of(shown.inputs));
  }
  class Scope {
   public:
    explicit Scope(const Traced& of) {
      if (of.trace_ == nullptr) return;
      if (of.trace_ != observe::Trace::current()) use_.emplace(of.trace_, "communication");
      scope_.emplace("comm", of.title_, of.bytes_);
    }

   private:
    std::optional<observe::Trace::Use> use_;
    std::optional<observe::TraceScope> scope_;  // ends first
  };

 private:
  observe::Trace* trace_ = nullptr;  // where nothing is recorded
  const char* title_;
  std::int64_t bytes_ = 0;
};

// Decrements the number of pending messages at the end of a message.
class CountedUntilHere {
 public:
  explicit CountedUntilHere(std::atomic<int>& messages) : messages_(messages) {}
  CountedUntilHere(const CountedUntilHere&) = delete;
  CountedUntilHere& operator=(const CountedUntilHere&) = delete;
  ~CountedUntilHere() { messages_.fetch_sub(1); }

 private:
  std::atomic<int>& messages_;
};

std::span<std::byte> bytes_of(const Dense& data) {
  return {static_cast<std::byte*>(data.data()), data.bytes()};
}

// The error of an endpoint's call under the name of the operation that made it.
Error named(const Error& error, std::string_view operation) {
  const auto& [call, rank, peer] = error.context();
  if (operation.empty() || (call != "exchange" && call != "await_any" && call != "flow" &&
                            call != "call" && call != "message"))
    return error;
  return Error(error.code(), error.message(), {std::string(operation), rank, peer});
}

std::atomic<AroundWait> around_wait = nullptr;

// True for errors after which a group cannot be used; the others are mistakes in a call.
bool is_of_group(Errc code) {
  return code == Errc::kTimeout || code == Errc::kPeerLost || code == Errc::kAborted ||
         code == Errc::kCorrupt || code == Errc::kInternal;
}

}  // namespace

WeftBackend::WeftBackend(std::unique_ptr<Engine> engine, int rank, int size,
                         std::chrono::milliseconds timeout, Origin origin)
    : Backend(rank, size),
      engine_(std::move(engine)),
      options_(c10::make_intrusive<Options>("weft", timeout)),
      origin_(std::move(origin)),
      process_(process_id()),
      between_threads_(engine_->endpoint().name() == std::string_view("inproc")),
      queues_(std::make_unique<TaskQueues>()) {
  if (origin_.family)
    member_ = std::make_unique<Family::Member>(origin_.family, *engine_, origin_.job_ranks);
}

WeftBackend::~WeftBackend() {
  if (process_id() != process_) {  // a forked child has no threads and is not a rank of the group
    static_cast<void>(queues_.release());
    static_cast<void>(member_.release());
    static_cast<void>(engine_.release());
    static_cast<void>(devices_.release());
    return;
  }
  const auto end = [this] {
    try {
      queues_->run(kCollectiveQueue, []() -> TaskQueues::After { return nullptr; });
    } catch (const Error& error) {  // no thread is left to wait with
      engine_->fail(error);
    }
    const bool given_up = std::uncaught_exceptions() > 0 || engine_->endpoint().failure();
    if (const auto cause = member_ && given_up ? member_->why_given_up() : family_cause())
      engine_->fail(*cause);
    if (messages_ > 0) engine_->endpoint().fail(Error(Errc::kAborted, "the group has ended"));
    queues_.reset();
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
  group_name_ = observe::ShortName(name);
  if (net::Host* const shared = host()) shared->name_group(name);
}

c10::intrusive_ptr<c10d::Backend::Options> WeftBackend::getBackendOptions() { return options_; }

WeftBackend::BackendPtr WeftBackend::split(const StorePtr& store, const std::vector<int>& ranks,
                                           const c10::intrusive_ptr<Options>& options) {
  WEFT_REQUIRE(origin_.make, "this group was made without a store and does not support subgroups");
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) return nullptr;
  auto made = origin_.make({store, ranks, static_cast<int>(mine - ranks.begin()),
                            options ? bounded(options->timeout) : timeout()});
  note(*made, options);
  return made;
}

#ifdef C10D_BACKEND_HAS_RECONFIGURE
WeftBackend::BackendPtr WeftBackend::merge(const StorePtr& store,
                                           const c10::intrusive_ptr<Options>& options,
                                           const int& rank, const int& size) {
  WEFT_REQUIRE(origin_.merges, "this group was made without a store and cannot be merged");
  auto made = origin_.make(
      {store, all_ranks(size), rank, options ? bounded(options->timeout) : timeout(), true});
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

WeftBackend::WorkPtr WeftBackend::submit(std::uint64_t queue, const Shown& shown, bool async,
                                         std::function<int()> body, WeftWork::Waiting waiting) {
  WEFT_REQUIRE(process_id() == process_,
               "this process was forked from a rank of a weft group and is not a rank itself; make "
               "groups after the fork");
  auto work = c10::make_intrusive<WeftWork>(rank_, shown, getSequenceNumberForGroup());
  work->set_waiting(std::move(waiting));
  const Traced traced(shown);
  const Moment moment = async ? Moment::now(shown.inputs, shown.results) : Moment();
  // Outside of inference mode, libtorch refuses to copy into a tensor that was made in it.
  const bool in_inference = c10::InferenceMode::is_enabled();
  const auto run = [this, work, traced, moment, in_inference, name = shown.name(),
                    body = std::move(body)]() -> TaskQueues::After {
    const at::NoGradGuard no_grad;
    const c10::InferenceMode as_the_caller(in_inference);
    int source = -1;
    std::exception_ptr why;
    try {
      const Moment::Scope after(moment);
      const Traced::Scope scope(traced);  // recorded before the waiting threads continue
      source = body();
    } catch (...) {
      why = caused_by(std::current_exception(), name);
    }
    return work->end(why, source);
  };
  try {
    async ? queues_->post(queue, run) : queues_->run(queue, run);
  } catch (const Error& error) {  // there is no thread for it
    if (queue == kCollectiveQueue) abort_with(error);
    throw;
  }
  if (async) return work;
  if (const auto why = work->exception()) std::rethrow_exception(why);
  return work;
}

std::exception_ptr WeftBackend::caused_by(std::exception_ptr why, std::string_view operation) {
  try {
    std::rethrow_exception(why);
  } catch (const Error& raw) {
    const Error error = cause_of(named(in_job_ranks(raw, origin_.job_ranks), operation));
    if (is_of_group(error.code())) record_failure(error);
    return std::make_exception_ptr(error);
  } catch (...) {
    return why;
  }
}

Error WeftBackend::cause_of(const Error& error) {
  const bool consequence = error.code() == Errc::kAborted || error.code() == Errc::kPeerLost;
  if (const auto cause = consequence ? family_cause() : std::nullopt) return *cause;
  const std::lock_guard lock(timed_out_mutex_);
  if (error.code() == Errc::kTimeout && !timed_out_) timed_out_ = error;
  if (error.code() != Errc::kAborted) return error;
  if (timed_out_) {
    const auto& [call, rank, peer] = timed_out_->context();
    return Error(Errc::kTimeout, timed_out_->message(), {error.context().operation, rank, peer});
  }
  const auto lost = member_ ? member_->earlier_loss() : std::nullopt;
  return lost.value_or(error);
}

WeftBackend::WorkPtr WeftBackend::collective(const Shown& shown, const How& how,
                                             std::function<void()> body) {
  if (shown.writes) require_writable(std::string(shown.name()), shown.results);
  const std::uint64_t number = sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
  return submit(kCollectiveQueue, shown, how.async,
                [this, body = std::move(body), position = shown_as(shown, number)] {
                  const observe::OperationScope here(position);
                  run_for_all(body);
                  return -1;
                });
}

template <class Body>
void WeftBackend::run_for_all(const Body& body) {
  run_and_tell(body, [this](const Error& why) { abort_with(why); }, {"", rank_});
}

observe::Operation WeftBackend::shown_as(const Shown& shown, std::uint64_t number) const {
  // A group of torch.distributed has only c10d's name.
  return {.name = observe::ShortName(shown.name()),
          .group = group_name_.empty() ? observe::ShortName(getGroupUid()) : group_name_,
          .number = number,
          .bytes = bytes_of(shown.inputs)};
}

bool WeftBackend::is_quiet() const {
  const observe::Trace* const trace = observe::Trace::current();
  return (trace == nullptr || !trace->recording()) && !at::hasGlobalCallbacks() &&
         !at::hasThreadLocalCallbacks() && process_id() == process_;
}

template <class Body>
void WeftBackend::run_here(std::uint64_t queue, std::string_view operation, const Body& body) {
  std::exception_ptr why;
  const auto run = [&] {
    try {
      body();
    } catch (...) {
      why = caused_by(std::current_exception(), operation);
    }
  };
  if (queue != TaskQueues::kFirst || !queues_->run_if_empty(run)) {
    queues_->run(queue, [&]() -> TaskQueues::After {
      run();
      return nullptr;
    });
  }
  if (why) std::rethrow_exception(why);
}

bool WeftBackend::run_now(schedule::Collective collective, const net::DirectArgs& args) {
  if (!is_quiet()) return false;
  const observe::OperationScope here(
      {.name = collective_names[static_cast<std::size_t>(collective)],
       .group = group_name_,
       .number = sequence_.fetch_add(1, std::memory_order_relaxed) + 1,
       .bytes = static_cast<std::uint64_t>(args.count) * size_of(args.dtype)});
  run_here(kCollectiveQueue, schedule::to_string(collective),
           [&] { run_for_all([&] { engine_->run(collective, args); }); });
  return true;
}

template <class Transfer>
bool WeftBackend::message_now(std::uint64_t direction, int peer, int tag,
                              const Transfer& transfer) {
  if (peer < 0 || peer >= size_ || between_threads_ || !is_quiet()) return false;
  messages_.fetch_add(1);
  ++others_;
  const CountedUntilHere under_way(messages_);
  const observe::OperationScope here(
      {.name = direction == kSendQueue ? kSendName : kRecvName, .group = group_name_});
  run_here(queue_of(direction, peer, tag), direction == kSendQueue ? "send" : "recv",
           [&] { transfer(engine_->endpoint(), channel_of(tag), Deadline::in(timeout())); });
  return true;
}

bool WeftBackend::send_now(std::span<std::byte> bytes, int peer, int tag) {
  return message_now(kSendQueue, peer, tag, [&](auto& endpoint, auto channel, Deadline end) {
    endpoint.send(peer, channel, bytes, end);
  });
}

bool WeftBackend::recv_now(std::span<std::byte> bytes, int peer, int tag) {
  return message_now(kRecvQueue, peer, tag, [&](auto& endpoint, auto channel, Deadline end) {
    endpoint.recv(peer, channel, bytes, end);
  });
}

WeftBackend::WorkPtr WeftBackend::message(std::uint64_t queue, const Shown& shown, int peer,
                                          int tag, std::function<int(Deadline never)> body) {
  messages_.fetch_add(1);
  ++others_;
  try {
    return submit(queue, shown, true,
                  [this, body = std::move(body), position = shown_as(shown, 0)] {
                    const CountedUntilHere under_way(messages_);
                    const observe::OperationScope here(position);
                    return body(net::kNever);
                  },
                  {.patience = timeout(),
                   .expire = [this, type = shown.type, name = std::string(shown.name()), peer,
                              tag] { expire(type, name, peer, tag); },
                   .wait = shown.type == c10d::OpType::SEND
                               ? nullptr
                               : std::function<void(bool)>([this, peer](bool begin) {
                                   engine_->endpoint().wait_for(peer, begin);
                                 })});
  } catch (...) {  // it was not posted
    messages_.fetch_sub(1);
    throw;
  }
}

void WeftBackend::expire(c10d::OpType type, const std::string& name, int peer, int tag) {
  const std::string which = type == c10d::OpType::SEND ? "the send to rank " + std::to_string(peer)
                            : peer >= 0 ? "the receive from rank " + std::to_string(peer)
                                        : std::string("the receive from any rank");
  const Error late(Errc::kTimeout,
                   which + net::on_channel(channel_of(tag)) + " was not complete in time",
                   {name, rank_, peer});
  {
    const std::lock_guard lock(timed_out_mutex_);
    if (!timed_out_) timed_out_ = in_job_ranks(late, origin_.job_ranks);
  }
  // An empty message that nobody sends: its deadline has passed, which ends the group on all ranks.
  try {
    engine_->endpoint().recv(peer >= 0 ? peer : (rank_ + 1) % size_, kExpired, {},
                             Deadline::in(std::chrono::seconds(0)));
  } catch (const Error&) {
    // Expected.
  }
  engine_->endpoint().fail(late);
}

WeftBackend::WorkPtr WeftBackend::send(Tensors& tensors, int peer, int tag) {
  const at::Tensor tensor = only(tensors, "send");
  if (auto* const devices = device_backend(tensor)) return devices->send(tensors, peer, tag);
  WEFT_REQUIRE(peer >= 0 && peer < size_, "send: rank " + std::to_string(peer) +
                                              " is not in the group of " + std::to_string(size_));
  const Shown shown{c10d::OpType::SEND, "weft:send", tensors, tensors};
  return message(queue_of(kSendQueue, peer, tag), shown, peer, tag,
                 [this, tensor, peer, tag](Deadline never) {
                   const Dense data(tensor, Dense::kIn);
                   engine_->endpoint().send(peer, channel_of(tag), bytes_of(data), never);
                   return -1;
                 });
}

WeftBackend::WorkPtr WeftBackend::recv(Tensors& tensors, int peer, int tag) {
  const at::Tensor tensor = only(tensors, "recv");
  if (auto* const devices = device_backend(tensor)) return devices->recv(tensors, peer, tag);
  WEFT_REQUIRE(peer >= 0 && peer < size_, "recv: rank " + std::to_string(peer) +
                                              " is not in the group of " + std::to_string(size_));
  require_writable("recv", tensors);
  const Shown shown{c10d::OpType::RECV, "weft:recv", tensors, tensors};
  return message(queue_of(kRecvQueue, peer, tag), shown, peer, tag,
                 [this, tensor, peer, tag, named = named_.post(tag, peer)](Deadline never) mutable {
                   const Dense data(tensor, Dense::kOut);
                   engine_->endpoint().recv(peer, channel_of(tag), bytes_of(data), never);
                   named.reset();
                   data.write_back();
                   return peer;
                 });
}

WeftBackend::WorkPtr WeftBackend::recvAnysource(Tensors& tensors, int tag) {
  const at::Tensor tensor = only(tensors, "recv");
  require_writable("recv", tensors);
  const Shown shown{c10d::OpType::RECVANYSOURCE, "weft:recvAnySource", tensors, tensors};
  return message(queue_of(kAnyQueue, 0, tag), shown, -1, tag, [this, tensor, tag](Deadline never) {
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

}  // namespace weft::comm::internal

void weft::comm::set_around_wait(AroundWait around) { internal::around_wait = around; }

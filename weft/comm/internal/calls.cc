// Which thread runs an operation, and in which order:
//
//   run_now(), send_now(), recv_now()     the caller's thread; no Work, nothing is recorded
//   collective(), synchronous             the caller's thread if nothing is pending, else queues_'
//   collective(), asynchronous; message() a thread of queues_
//
//   one queue                   for all collectives of the group, in the order of the calls
//   each direction, peer, tag   messages that must not overtake each other
//   each tag                    receives from any peer
//
// At the end of an operation: its trace is recorded, its error is replaced by the cause (causes.h),
// and then its Work ends, which lets waiting threads go on. Callbacks run after that.
//
// An error of a collective that the other ranks cannot know, such as missing memory, aborts the
// group (run_for_all()). Otherwise they would wait for this rank until their timeout.
#include "weft/comm/internal/calls.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>

#include <array>
#include <exception>
#include <optional>
#include <string_view>
#include <thread>

#include "weft/base/caught/caught.h"
#include "weft/base/process/id.h"
#include "weft/comm/internal/staging.h"
#include "weft/comm/internal/tensor_data.h"
#include "weft/observe/trace.h"

namespace weft::comm::internal {
namespace {

constexpr std::uint64_t kCollectiveQueue = TaskQueues::kFirst;
constexpr std::uint64_t kSendQueue = std::uint64_t{1} << 60, kRecvQueue = std::uint64_t{2} << 60,
                        kAnyQueue = std::uint64_t{3} << 60;

// 4 bits of direction, 28 of the peer, 32 of the tag: no two kinds of messages share a queue.
std::uint64_t queue_of(std::uint64_t direction, int peer, int tag) {
  return direction |
         (static_cast<std::uint64_t>(static_cast<std::uint32_t>(peer)) << 32 &
          ((std::uint64_t{1} << 60) - 1)) |
         static_cast<std::uint32_t>(tag);
}

std::uint64_t queue_of(c10d::OpType type, int peer, int tag) {
  return type == c10d::OpType::SEND   ? queue_of(kSendQueue, peer, tag)
         : type == c10d::OpType::RECV ? queue_of(kRecvQueue, peer, tag)
                                      : queue_of(kAnyQueue, 0, tag);
}

// Nobody sends on it.
constexpr net::Channel kExpired = (net::Channel{1} << 58) + 1;

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

}  // namespace

Calls::Calls(Context of)
    : of_(std::move(of)),
      process_(process_id()),
      between_threads_(of_.engine.endpoint().name() == std::string_view("inproc")) {}

bool Calls::is_in_its_process() const { return process_id() == process_; }

void Calls::finish() {
  queues_.run(kCollectiveQueue, []() -> TaskQueues::After { return nullptr; });
}

Calls::WorkPtr Calls::submit(std::uint64_t queue, const Shown& shown, bool async,
                             std::function<int()> body, WeftWork::Waiting waiting) {
  WEFT_REQUIRE(is_in_its_process(),
               "this process was forked from a rank of a weft group and is not a rank itself; make "
               "groups after the fork");
  auto work = c10::make_intrusive<WeftWork>(of_.rank, shown, number());
  work->set_waiting(std::move(waiting));
  const Traced traced(shown);
  const auto tell_ranks = [&](const Error& why) {
    // The other ranks may be in this collective already, and would wait for this one.
    if (queue == kCollectiveQueue) of_.abort(why);
  };
  const Moment moment = run_and_tell([&] { return Moment::now(shown.inputs, shown.results); },
                                     tell_ranks, {"", of_.rank});
  // Outside of inference mode, libtorch refuses to copy into a tensor that was made in it.
  const bool in_inference = c10::InferenceMode::is_enabled();
  const auto run = [this, work, traced, moment, in_inference, async,
                    caller = std::this_thread::get_id(), name = shown.name(),
                    body = std::move(body)]() -> TaskQueues::After {
    const at::NoGradGuard no_grad;
    const c10::InferenceMode as_the_caller(in_inference);
    int source = -1;
    std::exception_ptr why;
    try {
      std::optional<Moment::Scope> after;
      if (async || std::this_thread::get_id() != caller) after.emplace(moment);
      const Traced::Scope scope(traced);  // recorded before the waiting threads continue
      source = body();
      if (after) after->finish();
    } catch (...) {
      why = of_.causes.of(std::current_exception(), name);
    }
    return work->end(why, source);
  };
  try {
    async ? queues_.post(queue, run) : queues_.run(queue, run);
  } catch (const Error& error) {  // there is no thread for it
    tell_ranks(error);
    throw;
  }
  if (async) return work;
  if (const auto why = work->exception()) std::rethrow_exception(why);
  return work;
}

Calls::WorkPtr Calls::collective(const Shown& shown, bool async, std::function<void()> body) {
  if (shown.writes) require_writable(std::string(shown.name()), shown.results);
  const std::uint64_t number = collectives_.fetch_add(1, std::memory_order_relaxed) + 1;
  return submit(kCollectiveQueue, shown, async,
                [this, body = std::move(body), position = shown_as(shown, number)] {
                  const observe::OperationScope here(position);
                  run_for_all(body);
                  return -1;
                });
}

template <class Body>
void Calls::run_for_all(const Body& body) {
  run_and_tell(body, [this](const Error& why) { of_.abort(why); }, {"", of_.rank});
}

observe::Operation Calls::shown_as(const Shown& shown, std::uint64_t number) const {
  // A group of torch.distributed has only c10d's name.
  return {.name = observe::ShortName(shown.name()),
          .group = group_name_.empty() ? observe::ShortName(of_.torch_name()) : group_name_,
          .number = number,
          .bytes = bytes_of(shown.inputs)};
}

bool Calls::is_quiet() const {
  const observe::Trace* const trace = observe::Trace::current();
  return (trace == nullptr || !trace->recording()) && !at::hasGlobalCallbacks() &&
         !at::hasThreadLocalCallbacks() && is_in_its_process();
}

template <class Body>
void Calls::run_here(std::uint64_t queue, std::string_view operation, const Body& body) {
  std::exception_ptr why;
  const auto run = [&] {
    try {
      body();
    } catch (...) {
      why = of_.causes.of(std::current_exception(), operation);
    }
  };
  if (queue != TaskQueues::kFirst || !queues_.run_if_empty(run)) {
    queues_.run(queue, [&]() -> TaskQueues::After {
      run();
      return nullptr;
    });
  }
  if (why) std::rethrow_exception(why);
}

bool Calls::run_now(schedule::Collective collective, const net::DirectArgs& args) {
  if (!is_quiet()) return false;
  const observe::OperationScope here(
      {.name = collective_names[static_cast<std::size_t>(collective)],
       .group = group_name_,
       .number = collectives_.fetch_add(1, std::memory_order_relaxed) + 1,
       .bytes = static_cast<std::uint64_t>(args.count) * size_of(args.dtype)});
  run_here(kCollectiveQueue, schedule::to_string(collective),
           [&] { run_for_all([&] { of_.engine.run(collective, args); }); });
  return true;
}

template <class Transfer>
bool Calls::message_now(std::uint64_t direction, int peer, int tag, const Transfer& transfer) {
  if (peer < 0 || peer >= of_.size || between_threads_ || !is_quiet()) return false;
  messages_.fetch_add(1);
  ++others_;
  const CountedUntilHere under_way(messages_);
  const observe::OperationScope here(
      {.name = direction == kSendQueue ? kSendName : kRecvName, .group = group_name_});
  run_here(queue_of(direction, peer, tag), direction == kSendQueue ? "send" : "recv",
           [&] { transfer(of_.engine.endpoint(), channel_of(tag)); });
  return true;
}

bool Calls::send_now(std::span<std::byte> bytes, int peer, int tag,
                     std::chrono::milliseconds limit) {
  return message_now(kSendQueue, peer, tag, [&](auto& endpoint, auto channel) {
    endpoint.send(peer, channel, bytes, Deadline::in(limit));
  });
}

bool Calls::recv_now(std::span<std::byte> bytes, int peer, int tag,
                     std::chrono::milliseconds limit) {
  return message_now(kRecvQueue, peer, tag, [&](auto& endpoint, auto channel) {
    endpoint.recv(peer, channel, bytes, Deadline::in(limit));
  });
}

Calls::WorkPtr Calls::message(const Shown& shown, int peer, int tag,
                              std::chrono::milliseconds patience,
                              std::function<int(Deadline never)> body) {
  messages_.fetch_add(1);
  ++others_;
  try {
    return submit(queue_of(shown.type, peer, tag), shown, true,
                  [this, body = std::move(body), position = shown_as(shown, 0)] {
                    const CountedUntilHere under_way(messages_);
                    const observe::OperationScope here(position);
                    return body(net::kNever);
                  },
                  {.patience = patience,
                   .expire = [this, type = shown.type, name = std::string(shown.name()), peer,
                              tag] { expire(type, name, peer, tag); },
                   .wait = shown.type == c10d::OpType::SEND
                               ? nullptr
                               : std::function<void(bool)>([this, peer](bool begin) {
                                   of_.engine.endpoint().wait_for(peer, begin);
                                 })});
  } catch (...) {  // it was not posted
    messages_.fetch_sub(1);
    throw;
  }
}

void Calls::expire(c10d::OpType type, const std::string& name, int peer, int tag) {
  const std::string which = type == c10d::OpType::SEND ? "the send to rank " + std::to_string(peer)
                            : peer >= 0 ? "the receive from rank " + std::to_string(peer)
                                        : std::string("the receive from any rank");
  const Error late(Errc::kTimeout,
                   which + net::on_channel(channel_of(tag)) + " was not complete in time",
                   {name, of_.rank, peer});
  of_.causes.note_timeout(late);
  // An empty message that nobody sends: its deadline has passed, which ends the group on all ranks.
  try {
    of_.engine.endpoint().recv(peer >= 0 ? peer : (of_.rank + 1) % of_.size, kExpired, {},
                               Deadline::in(std::chrono::seconds(0)));
  } catch (const Error&) {
    // Expected.
  }
  of_.engine.endpoint().fail(late);
}

}  // namespace weft::comm::internal

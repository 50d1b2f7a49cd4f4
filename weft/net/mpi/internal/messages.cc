#include "weft/net/mpi/internal/messages.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "weft/base/caught/caught.h"
#include "weft/net/channels.h"

namespace weft::net::mpi::internal {
namespace {

using namespace std::chrono_literals;
using weft::net::internal::check_peers;
using weft::net::internal::seen_by_others;

// Pieces of a long message, since MPI counts in int.
constexpr std::size_t kPiece = std::size_t{1} << 30;
constexpr auto kGrace = 100ms;  // time for the transfers of a failed call to end

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

Error length_error(int rank, const Recv& recv, const Header& header) {
  return Error(Errc::kInvalidArgument,
               "rank " + std::to_string(rank) + " receives " + std::to_string(recv.bytes.size()) +
                   " bytes" + on_channel(header.channel) + " but rank " +
                   std::to_string(recv.peer) + " sent " + std::to_string(header.bytes) +
                   "; both must use the same length",
               {"exchange", rank, recv.peer});
}

}  // namespace

// A receive that waits for its message.
struct Messages::Expected {
  Recv recv;
  Operation* operation;
  bool matched = false;
};

// Transfers of one call. The MPI requests are those of its long messages.
struct Messages::Operation {
  bool begun = false;
  std::vector<Expected> receives;
  std::size_t unmatched = 0;
  std::vector<Request> sending, receiving;
  std::optional<Error> error;  // set by the thread that received the message
  std::size_t bytes = 0;
};

Messages::Messages(Runtime& runtime, Comm comm, int rank, int world)
    : runtime_(runtime),
      rank_(rank),
      world_(world),
      comm_(comm),
      failure_(rank),
      headers_(runtime, comm, world),
      queues_(static_cast<std::size_t>(world)),
      gone_(world) {}

Messages::~Messages() = default;

void Messages::exchange(Channel channel, std::span<const Send> sends, std::span<const Recv> recvs,
                        Deadline deadline) {
  check_peers(world_, sends, recvs);
  Operation operation;
  for (const Send& send : sends) operation.bytes += send.bytes.size();
  for (const Recv& recv : recvs) {
    operation.receives.push_back({recv, &operation});
    operation.bytes += recv.bytes.size();
  }
  const auto poll = [&] {
    const std::lock_guard lock(mutex_);
    if (!operation.begun) failure_.refuse("exchange");
    try {
      if (!operation.begun) begin(operation, channel, sends);
      return step(operation, channel, deadline);
    } catch (const std::exception& error) {
      abandon(operation, channel, error);
      throw;
    }
  };
  runtime_.run(std::ref(poll), operation.bytes);
}

int Messages::recv_any(Channel channel, std::span<std::byte> bytes, Deadline deadline,
                       const std::function<bool(int peer)>& may) {
  Operation operation;
  operation.bytes = bytes.size();
  int peer = -1;
  const auto poll = [&] {
    const std::lock_guard lock(mutex_);
    if (!operation.begun) {
      peer = find_any(channel, deadline, may);
      if (peer < 0) return false;
      operation.receives.push_back({{peer, bytes}, &operation});
    }
    try {
      if (!operation.begun) begin(operation, channel, {});
      return step(operation, channel, deadline);
    } catch (const std::exception& error) {
      abandon(operation, channel, error);
      throw;
    }
  };
  runtime_.run(std::ref(poll), operation.bytes);
  return peer;
}

void Messages::begin(Operation& operation, Channel channel, std::span<const Send> sends) {
  operation.begun = true;
  operation.unmatched = operation.receives.size();
  for (Expected& expected : operation.receives) {
    ChannelQueue& queue = queues_[static_cast<std::size_t>(expected.recv.peer)][channel];
    if (queue.arrived.empty()) {
      queue.expected.push_back(&expected);
      continue;
    }
    const Arrived first = std::move(queue.arrived.front());
    queue.arrived.pop_front();
    take(expected, first.header, first.bytes.data());
  }
  for (const Send& send : sends) {
    if (gone_.contains(send.peer)) weft::net::internal::throw_left({"exchange", rank_, send.peer});
    const bool is_short = send.bytes.size() <= Headers::kShort;
    Header header{.channel = channel, .bytes = send.bytes.size()};
    if (!is_short) header.tag = headers_.next_tag(send.peer);
    headers_.post(send.peer, header, is_short ? send.bytes : std::span<const std::byte>());
    for (std::size_t at = is_short ? send.bytes.size() : 0; at < send.bytes.size(); at += kPiece) {
      Request request;
      runtime_.check(runtime_.table().isend(comm_, send.bytes.data() + at,
                                            std::min(kPiece, send.bytes.size() - at), send.peer,
                                            header.tag, &request),
                     "MPI_Isend");
      operation.sending.push_back(request);
    }
  }
}

// Called when a message and its receive match.
void Messages::take(Expected& expected, const Header& header, const std::byte* bytes) {
  Operation& operation = *expected.operation;
  expected.matched = true;
  --operation.unmatched;
  const auto target = expected.recv.bytes;
  if (header.bytes != target.size()) {
    operation.error = length_error(rank_, expected.recv, header);
    return;
  }
  if (header.tag == Headers::kTag) {
    if (!target.empty()) std::memcpy(target.data(), bytes, target.size());
    return;
  }
  for (std::size_t at = 0; at < target.size(); at += kPiece) {
    Request request;
    runtime_.check(
        runtime_.table().irecv(comm_, target.data() + at, std::min(kPiece, target.size() - at),
                               expected.recv.peer, header.tag, &request),
        "MPI_Irecv");
    operation.receiving.push_back(request);
  }
}

bool Messages::step(Operation& operation, Channel channel, Deadline deadline) {
  progress();
  if (operation.error) throw Error(*operation.error);
  if (failure_.latched()) failure_.end_pending("exchange");
  const bool sent = drain(operation.sending), received = drain(operation.receiving);
  if (sent && received && operation.unmatched == 0) return true;
  if (gone_.count() > 0) {
    for (const Expected& expected : operation.receives) {
      if (!expected.matched && gone_.contains(expected.recv.peer))
        weft::net::internal::throw_left({"exchange", rank_, expected.recv.peer});
    }
  }
  if (!deadline.passed()) return false;
  const auto late = std::find_if(operation.receives.begin(), operation.receives.end(),
                                 [](const Expected& e) { return !e.matched; });
  const int peer = late != operation.receives.end() ? late->recv.peer : -1;
  throw Error(Errc::kTimeout,
              peer >= 0
                  ? "the receive from rank " + std::to_string(peer) + on_channel(channel) +
                        " was not complete before the deadline"
                  : "a message" + on_channel(channel) + " was not received before the deadline",
              {"exchange", rank_, peer});
}

// Tests the requests and removes completed ones. Returns true if none is left.
bool Messages::drain(std::vector<Request>& requests) {
  std::erase_if(requests, [&](Request& request) {
    std::int32_t done = 0;
    runtime_.check(runtime_.table().test(&request, &done, nullptr), "MPI_Test");
    return done != 0;
  });
  return requests.empty();
}

// Completes all transfers that use memory of a caller, or ends the use of MPI.
void Messages::abandon(Operation& operation, Channel channel,
                       const std::exception& error) noexcept {
  try {
    for (const Expected& expected : operation.receives) {
      if (!expected.matched)
        queues_[static_cast<std::size_t>(expected.recv.peer)][channel].expected.remove(
            const_cast<Expected*>(&expected));
    }
    take_as_error(error, [&](const Error& why) { latch_and_tell(why); });
    for (Request& request : operation.receiving) runtime_.table().cancel(&request);
    for (const auto end = Deadline::in(kGrace);
         !drain(operation.receiving) || !drain(operation.sending);) {
      if (end.passed()) return runtime_.stop(error.what());
    }
  } catch (const std::exception& second) {
    runtime_.stop(second.what());
  }
}

int Messages::await_any(Channel channel, Deadline deadline) {
  int found = -1;
  const auto poll = [&] {
    const std::lock_guard lock(mutex_);
    found = find_any(channel, deadline, nullptr);
    return found >= 0;
  };
  runtime_.run(std::ref(poll), 0);
  return found;
}

// The sender of a message that has no receive yet, or -1. Peers take turns.
int Messages::find_any(Channel channel, Deadline deadline,
                       const std::function<bool(int peer)>& may) {
  failure_.refuse("await_any");
  progress();
  for (int i = 1; i <= world_; ++i) {
    const int peer = (turn_ + i) % world_;
    const auto& queues = queues_[static_cast<std::size_t>(peer)];
    const auto queue = queues.find(channel);
    if (queue == queues.end() || queue->second.arrived.empty() || (may && !may(peer))) continue;
    return turn_ = peer;
  }
  if (world_ > 1 && gone_.count() >= world_ - 1) weft::net::internal::throw_alone(rank_);
  if (deadline.passed()) weft::net::internal::throw_no_message(rank_, channel);
  return -1;
}

void Messages::run(const Native& native, Deadline deadline) {
  bool begun = false;
  unsigned polls = 0;
  const auto poll = [&] {
    const std::lock_guard lock(mutex_);
    if (!begun) failure_.refuse(native.name);
    begun = true;
    try {
      if (native.step()) return ++collectives_, true;
      if (++polls % 32 != 0) return false;
      progress();
      if (failure_.latched()) failure_.end_pending(native.name);
      // A peer that has ended the collective may have left already.
      for (int peer = 0; gone_.count() > 0 && peer < world_; ++peer) {
        if (gone_.lacks(peer, collectives_))
          weft::net::internal::throw_left({native.name, rank_, peer});
      }
      if (deadline.passed())
        throw Error(Errc::kTimeout, "not all ranks arrived before the deadline",
                    {native.name, rank_, -1});
      return false;
    } catch (const Error& error) {
      latch_and_tell(error);
      if (native.in_flight()) runtime_.stop(error.what());
      throw;
    }
  };
  runtime_.run(std::ref(poll), native.bytes);
}

void Messages::fail(const Error& why) noexcept {
  const std::lock_guard lock(mutex_);
  failure_.latch(why, true);
}

void Messages::abort(const Error& why) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      if (!failure_.latch(why, true)) return;
      untold_ = true;
    }
    const auto poll = [&] {
      const std::lock_guard lock(mutex_);
      if (!is_closed_) progress();
      return true;
    };
    runtime_.run(std::ref(poll), 0);
  } catch (const std::exception&) {
    // MPI is no longer used, so peers cannot be told.
  }
}

std::optional<Error> Messages::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_.error();
}

Deadline::Clock::time_point Messages::failed_at() const {
  const std::lock_guard lock(mutex_);
  return failure_.at();
}

void Messages::fail_all(const Error& error) {
  const auto poll = [&] {
    const std::lock_guard lock(mutex_);
    latch_and_tell(error);
    return true;
  };
  runtime_.run(std::ref(poll), 0);
}

void Messages::latch_and_tell(const Error& error) {
  if (!failure_.latch(error, false)) return;
  tell_failure(seen_by_others(error, rank_));
}

void Messages::tell_failure(const Error& theirs) {
  tell_peers({.kind = Kind::kFailed,
              .code = static_cast<std::int32_t>(theirs.code()),
              .culprit = theirs.context().peer},
             as_bytes(theirs.message()));
}

void Messages::tell_peers(const Header& header, std::span<const std::byte> text) {
  for (int peer = 0; peer < world_; ++peer) {
    if (peer != rank_ && !gone_.contains(peer))
      headers_.post(peer, header, text.first(std::min(text.size(), Headers::kShort)));
  }
}

// Receives headers that have arrived, and frees those that are sent.
void Messages::progress() {
  headers_.listen();
  if (std::exchange(untold_, false)) {
    tell_failure(Error(Errc::kAborted,
                       "rank " + std::to_string(rank_) + " failed: " + failure_.error()->what(),
                       {"", rank_, rank_}));
  }
  headers_.receive([&](int peer, const Header& header, std::span<const std::byte> data) {
    arrive(peer, header, data);
  });
  headers_.free_sent();
}

void Messages::arrive(int peer, const Header& header, std::span<const std::byte> data) {
  if (header.kind == Kind::kGoodbye) {
    gone_.add(peer, header.bytes);
  } else if (header.kind == Kind::kFailed) {
    const std::string text(reinterpret_cast<const char*>(data.data()), data.size());
    failure_.latch(Error(static_cast<Errc>(header.code), text, {"", rank_, header.culprit}), false);
  } else {
    ChannelQueue& queue = queues_[static_cast<std::size_t>(peer)][header.channel];
    if (queue.expected.empty()) {
      queue.arrived.push_back({header, {data.begin(), data.end()}});
    } else {
      Expected& expected = *queue.expected.front();
      queue.expected.pop_front();
      take(expected, header, data.data());
    }
  }
}

void Messages::leave() noexcept {
  try {
    bool begun = false;
    const auto end = Deadline::in(500ms);
    const auto poll = [&] {
      const std::lock_guard lock(mutex_);
      if (is_closed_) return true;  // by look_after(), between two calls of this function
      if (!begun) progress();       // a failure is told before the goodbye
      if (!begun) tell_peers({.bytes = collectives_, .kind = Kind::kGoodbye}, {});
      begun = left_ = true;
      progress();
      return headers_.all_sent() || end.passed();
    };
    runtime_.run(std::ref(poll), 0);
  } catch (const Error&) {
    // MPI is no longer used, so peers cannot be notified.
  }
}

bool Messages::look_after() noexcept {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || runtime_.stopped()) return false;
  try {
    progress();
    if (!left_ || gone_.count() < world_ - 1 || !headers_.all_sent()) return false;
    close();
    is_closed_ = true;
    if (!failure_.latched()) runtime_.table().free(&comm_);
    return true;
  } catch (const Error& error) {
    failure_.latch(error, false);
    return left_;
  }
}

// No request may be left at the end.
void Messages::close() noexcept { headers_.close(kGrace); }

}  // namespace weft::net::mpi::internal

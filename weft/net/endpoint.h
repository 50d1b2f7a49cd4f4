// Point-to-point messages between the ranks of one group, over any transport: threads, shared
// memory, TCP, MPI.
//
// Every call has a deadline. A lost peer ends the group: every call on a survivor, pending or
// later, throws kPeerLost naming it. After fail(), or after an error in exchange() with valid
// arguments, every later call throws kAborted and cites the first error, with the same peer in its
// context. Nothing touches the buffers of a call that has returned or thrown. Any thread may call
// any method.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/net/counter.h"
#include "weft/net/rank_names.h"

namespace weft::net {

// Messages match by (peer, channel), in the order sent. Collectives and each user tag have their
// own channels. A used channel costs some hundred bytes for the life of the endpoint, so do not use
// a new channel for each message.
using Channel = std::uint64_t;

// Bytes chosen by the caller on which both ends of a message must agree, in addition to its length.
// If the labels of sender and receiver differ, the group ends with mismatch(…), kInvalidArgument on
// every rank, unless that is nullopt: they agree nevertheless. All zeros: no check. Transports that
// cannot carry labels deliver zeros. The label of a call that is shown to begin_call() ends with
// its number, 8 bytes of a std::uint64_t.
struct Label {
  using Bytes = std::array<std::byte, 40>;
  Bytes bytes{};
  std::optional<Error> (*mismatch)(int rank, const Bytes& mine, int peer,
                                   const Bytes& theirs) = nullptr;
};

// The deadline of a call that no caller waits for yet. See wait_for().
inline const Deadline kNever = Deadline::at(Deadline::Clock::time_point::max());

// Labels are optional. They must stay valid until the transfer is complete.
struct Send {
  int peer = -1;
  std::span<const std::byte> bytes;
  const Label* label = nullptr;
};
struct Recv {
  int peer = -1;
  // must have the length of the message; otherwise the receiver gets Error(kInvalidArgument) with
  // both lengths
  std::span<std::byte> bytes;
  const Label* label = nullptr;
};

// Transfers on one channel that start one by one while others are in progress. Used by one thread.
// Errors are those of exchange(), and also end the group. Destroying it with transfers in progress
// ends the group, since their buffers may be freed.
class Flow {
 public:
  virtual ~Flow() = default;

  // Starts a transfer; `id` is the caller's id for it. Between two ranks, messages match in the
  // order of starting.
  virtual void send(const Send& send, std::uint32_t id) = 0;
  virtual void recv(const Recv& recv, std::uint32_t id) = 0;
  // Makes progress. If no transfer is complete, waits until one is. Appends the ids of completed
  // transfers to `done`.
  virtual void wait(std::vector<std::uint32_t>& done, Deadline deadline) = 0;
  // Like wait(), but does not wait.
  virtual void poll(std::vector<std::uint32_t>& done) = 0;
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;

  virtual int rank() const = 0;
  virtual int world() const = 0;
  // Name of the transport: "inproc", "shm", "tcp", "mpi".
  virtual const char* name() const = 0;
  // Epoch of the group. Messages of another epoch are never delivered.
  virtual std::uint32_t epoch() const = 0;

  // Runs all transfers concurrently. Returns when every send's bytes may be reused and every
  // receive is complete. Progress does not depend on the order of the transfers: two ranks that
  // exchange large messages in one call each do not deadlock. peer == rank() is allowed.
  virtual void exchange(Channel channel, std::span<const Send> sends, std::span<const Recv> recvs,
                        Deadline deadline) = 0;

  // nullptr if the transport has only exchange(); callers then work round by round. The endpoint
  // outlives the flow.
  virtual std::unique_ptr<Flow> flow(Channel /*channel*/) { return nullptr; }

  // Declares that this rank is in call `number` of `channel` (counted by the caller from 0), and
  // that the messages of this call have this label. Returns true if the endpoint detects calls with
  // the same number and different labels. All ranks then get mismatch(…) within a second, even if
  // no message passes between them; a rank that calls later gets it here. Returns false if the
  // caller must check.
  virtual bool begin_call(Channel /*channel*/, std::uint64_t /*number*/, const Label& /*label*/) {
    return false;
  }

  // Waits until a message on `channel` from any peer can be received. Returns the sender; does not
  // receive the message.
  virtual int await_any(Channel channel, Deadline deadline) = 0;

  // Receives the next message on `channel` from any peer for which `may` is true, and returns the
  // sender. Otherwise as recv(). No other receive can take the message in between. `may` is called
  // with the endpoint's lock held and may change its answer to true at any time. This default, of
  // transports without an own recv_any(), ignores `may`, and another receive may be faster.
  virtual int recv_any(Channel channel, std::span<std::byte> bytes, Deadline deadline,
                       const std::function<bool(int peer)>& /*may*/) {
    const int peer = await_any(channel, deadline);
    recv(peer, channel, bytes, deadline);
    return peer;
  }

  // A caller begins or ends to wait for a message of `peer` (-1: of any) that a call with the
  // deadline kNever receives. Meanwhile the peer's other messages may exceed the limit of
  // unexpected bytes, as they may during a receive with a deadline. Transports without a limit do
  // nothing.
  virtual void wait_for(int /*peer*/, bool /*begin*/) {}

  // Ends all pending and later calls on this rank with kAborted, citing `why`. The first call wins.
  // Does not communicate.
  virtual void fail(const Error& why) noexcept = 0;
  // As fail(), and tells the other ranks at once: their pending and later calls end with kAborted,
  // naming this rank and `why`. Does not wait for them. A call whose message is still on its way
  // may end too. This default, of transports whose ranks notice by other means, tells nobody.
  virtual void abort(const Error& why) noexcept { fail(why); }
  // The first error, if any.
  virtual std::optional<Error> failure() const = 0;
  // When this rank found it; the latest time if there is none, or if that is not known.
  virtual Deadline::Clock::time_point failed_at() const {
    return Deadline::Clock::time_point::max();
  }

  // Names of the ranks in the position of a rank that waits. Call it before the first transfer.
  void name_ranks(RankNames names) { names_ = std::move(names); }

  // Payload bytes of all messages to other ranks that this endpoint has accepted so far.
  std::uint64_t sent_bytes() const { return sent_.value(); }

  void send(int peer, Channel channel, std::span<const std::byte> bytes, Deadline deadline) {
    const Send one{peer, bytes};
    exchange(channel, {&one, 1}, {}, deadline);
  }
  void recv(int peer, Channel channel, std::span<std::byte> bytes, Deadline deadline) {
    const Recv one{peer, bytes};
    exchange(channel, {}, {&one, 1}, deadline);
  }

 protected:
  // Counts messages. One thread at a time.
  void count_sent(std::span<const Send> sends) {
    for (const Send& send : sends)
      if (send.peer != rank()) sent_.add(send.bytes.size());
  }

  int job_rank(int rank) const { return names_.of(rank); }

 private:
  Counter sent_;
  RankNames names_;
};

}  // namespace weft::net

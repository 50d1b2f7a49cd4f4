// Point-to-point messages between the ranks of one group, whatever carries them: threads, shared
// memory, TCP, MPI.
//
// Every call has a deadline. A lost peer ends the group: every call on a survivor, pending or
// later, throws kPeerLost naming it. After fail() (or another error in exchange() once its
// arguments were found good) every later call throws kAborted and cites the first error, with the
// same culprit in its context. Nothing touches the buffers of a call that has returned or thrown.
// Any thread may call any method.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/net/counter.h"

namespace weft::net {

// Messages match by (peer, channel), in the order sent. Collectives and each user tag have channels
// of their own. A channel that was used costs some hundred bytes for as long as the endpoint lives:
// number them, do not make one for each message.
using Channel = std::uint64_t;

// What both ends of a message must agree on beside its length, in bytes of the caller's making. A
// message whose label differs from its receiver's ends the group with mismatch(…), kInvalidArgument
// on every rank. All zeros: nothing is said, nothing is checked; transports that cannot carry
// labels deliver that.
struct Label {
  using Bytes = std::array<std::byte, 40>;
  Bytes bytes{};
  Error (*mismatch)(int rank, const Bytes& mine, int peer, const Bytes& theirs) = nullptr;
};

// Labels are optional, and stay where they are as long as the transfer is under way.
struct Send {
  int peer = -1;
  std::span<const std::byte> bytes;
  const Label* label = nullptr;
};
struct Recv {
  int peer = -1;
  // must be as long as the message: another length is Error(kInvalidArgument) on the receiver,
  // naming both
  std::span<std::byte> bytes;
  const Label* label = nullptr;
};

// Transfers on one channel that begin one by one while others are under way. Used by one thread;
// errors are those of exchange(), and end the group too. Destroyed while transfers are under way it
// ends the group: their buffers may go.
class Flow {
 public:
  virtual ~Flow() = default;

  // Begins a transfer; `id` is the caller's name for it. Between two ranks messages match in the
  // order begun.
  virtual void send(const Send& send, std::uint32_t id) = 0;
  virtual void recv(const Recv& recv, std::uint32_t id) = 0;
  // Moves what can be moved, waits until something is complete if nothing is, and appends the names
  // of what has become so to `done`.
  virtual void wait(std::vector<std::uint32_t>& done, Deadline deadline) = 0;
  // The same without waiting.
  virtual void poll(std::vector<std::uint32_t>& done) = 0;
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;

  virtual int rank() const = 0;
  virtual int world() const = 0;
  // What carries the messages, in a word: "inproc", "shm", "tcp", "mpi".
  virtual const char* name() const = 0;
  // The group's incarnation: messages of another epoch are never delivered.
  virtual std::uint32_t epoch() const = 0;

  // Makes all transfers at once and returns when every send's bytes may be reused and every receive
  // is complete. No order among the transfers is needed for progress: two ranks that exchange large
  // messages in one call each do not deadlock. peer == rank() is allowed.
  virtual void exchange(Channel channel, std::span<const Send> sends, std::span<const Recv> recvs,
                        Deadline deadline) = 0;

  // nullptr where the transport has only exchange(), whose callers go round by round then. The
  // endpoint outlives the flow.
  virtual std::unique_ptr<Flow> flow(Channel /*channel*/) { return nullptr; }

  // Says that this rank is in call `number` of `channel`, which its caller counts from 0, and that
  // the messages of that call have this label. True where the endpoint sees to it that ranks that
  // mean different things by one number all get mismatch(…) within a second, even where no message
  // passes between them; a rank whose call begins after that gets it here. False: the caller sees
  // to it.
  virtual bool begin_call(Channel /*channel*/, std::uint64_t /*number*/, const Label& /*label*/) {
    return false;
  }

  // Waits until a message on `channel` from any peer is there to be received; gives its sender and
  // leaves the message.
  virtual int await_any(Channel channel, Deadline deadline) = 0;

  // Ends all pending and later calls on this rank with kAborted, citing `why`. The first call wins.
  // Does not communicate.
  virtual void fail(const Error& why) noexcept = 0;
  // The first error, if any.
  virtual std::optional<Error> failure() const = 0;

  // Payload bytes of the messages to other ranks that this endpoint has taken over so far.
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

 private:
  Counter sent_;
};

}  // namespace weft::net

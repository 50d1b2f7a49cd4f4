// Point-to-point messages over one MPI communicator, and the group's failure.
//
// Each message begins with a header (tag 0, at most 4 KiB including data), which is received from
// any source. The data of a longer message follows under its own tag, directly into the buffer of
// the receive, once the receive is posted. MPI keeps the headers of a peer in order, so its goodbye
// arrives after everything that it sent. This protocol is needed because MPI cannot match 64-bit
// channels and cannot tell a receiver the length in advance.
#pragma once

#include <functional>
#include <list>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "weft/net/endpoint.h"
#include "weft/net/internal/failure.h"
#include "weft/net/mpi/internal/headers.h"
#include "weft/net/mpi/internal/runtime.h"

namespace weft::net::mpi::internal {

// Peers that have said goodbye, and after how many collectives.
class LeftPeers {
 public:
  explicit LeftPeers(int world) : collectives_(static_cast<std::size_t>(world)) {}

  void add(int peer, std::uint64_t collectives) {
    collectives_[static_cast<std::size_t>(peer)] = collectives;
    ++count_;
  }
  bool contains(int peer) const { return collectives_[static_cast<std::size_t>(peer)].has_value(); }
  // True if the peer has left without the collective that follows after this number.
  bool lacks(int peer, std::uint64_t number) const {
    return contains(peer) && *collectives_[static_cast<std::size_t>(peer)] <= number;
  }
  int count() const { return count_; }

 private:
  std::vector<std::optional<std::uint64_t>> collectives_;  // by peer
  int count_ = 0;
};

class Messages final : public Background {
 public:
  // Takes ownership of `comm`.
  Messages(Runtime& runtime, Comm comm, int rank, int world);
  ~Messages() override;

  void exchange(Channel channel, std::span<const Send> sends, std::span<const Recv> recvs,
                Deadline deadline);
  int await_any(Channel channel, Deadline deadline);
  int recv_any(Channel channel, std::span<std::byte> bytes, Deadline deadline,
               const std::function<bool(int peer)>& may);
  void fail(const Error& why) noexcept;
  // Tells the other ranks. If only MPI's thread may call MPI, waits until it can.
  void abort(const Error& why) noexcept;
  std::optional<Error> failure() const;
  Deadline::Clock::time_point failed_at() const;

  // Runs an MPI collective under the group's rules. step() starts it, is called again until it
  // returns true, and may throw. A lost or failed peer and the deadline end it. in_flight() is true
  // while MPI holds its buffers.
  struct Native {
    const char* name;
    std::function<bool()> step;
    std::function<bool()> in_flight;
    std::size_t bytes;
  };
  void run(const Native& native, Deadline deadline);
  // Ends the group with `error` on all ranks. If the group has ended already, the first error
  // stays.
  void fail_all(const Error& error);

  // Sends a goodbye and waits at most half a second for it to be sent. The communicator is freed
  // when all ranks have sent theirs.
  void leave() noexcept;
  bool look_after() noexcept override;
  void close() noexcept override;

  Comm comm() const { return comm_; }

 private:
  using Kind = Header::Kind;
  // A message that arrived before its receive was posted.
  struct Arrived {
    Header header;
    std::vector<std::byte> bytes;  // all data of a short message
  };
  struct Operation;
  struct Expected;
  struct ChannelQueue {
    std::list<Arrived> arrived;
    std::list<Expected*> expected;
  };

  void begin(Operation& operation, Channel channel, std::span<const Send> sends);
  bool step(Operation& operation, Channel channel, Deadline deadline);
  void abandon(Operation& operation, Channel channel, const std::exception& error) noexcept;
  int find_any(Channel channel, Deadline deadline, const std::function<bool(int peer)>& may);
  bool drain(std::vector<Request>& requests);
  void take(Expected& expected, const Header& header, const std::byte* bytes);
  void tell_peers(const Header& header, std::span<const std::byte> text);
  void latch_and_tell(const Error& error);
  void tell_failure(const Error& theirs);
  void progress();
  void arrive(int peer, const Header& header, std::span<const std::byte> data);

  Runtime& runtime_;
  const int rank_, world_;
  mutable std::mutex mutex_;  // guards all below
  Comm comm_;
  weft::net::internal::Failure failure_;
  Headers headers_;
  bool left_ = false;
  bool untold_ = false;     // abort() has been called, and the other ranks are still to be told
  bool is_closed_ = false;  // no request is left, and the communicator has been freed
  std::vector<std::unordered_map<Channel, ChannelQueue>> queues_;  // by peer
  LeftPeers gone_;
  std::uint64_t collectives_ = 0;  // number of collectives ended so far
  int turn_ = 0;
};

}  // namespace weft::net::mpi::internal

// The headers of messages over one MPI communicator, with the data of short messages. They are
// received from any source, and those of a peer arrive in order.
//
// Invariant: while it listens, one receive is posted. Memory of a header that is sent stays until
// MPI has sent it. The owner guards it. Throws what Runtime::check() throws.
#pragma once

#include <cstring>
#include <list>
#include <span>
#include <vector>

#include "weft/net/endpoint.h"
#include "weft/net/mpi/internal/runtime.h"

namespace weft::net::mpi::internal {

// The tag of data that follows data with the tag `last` (0: no data yet): 1 to tags - 1 in turn.
constexpr std::int32_t tag_after(std::int32_t last, std::int32_t tags) {
  return last % (tags - 1) + 1;
}

struct Header {
  enum class Kind : std::int32_t { kMessage, kGoodbye, kFailed };
  // For a goodbye, `bytes` is the number of collectives that its sender has ended.
  std::uint64_t channel = 0, bytes = 0;
  Kind kind = Kind::kMessage;
  std::int32_t tag = 0;                 // tag of the data that follows
  std::int32_t code = 0, culprit = -1;  // of a failure
};

class Headers {
 public:
  static constexpr std::size_t kShort = 4096;  // most bytes that are sent with a header
  static constexpr std::int32_t kTag = 0;

  // `comm` is not freed before close().
  Headers(Runtime& runtime, Comm comm, int world);

  // A tag for data that follows a header to this peer.
  std::int32_t next_tag(int peer);
  // Sends a header with data of at most kShort bytes, which is copied.
  void post(int peer, const Header& header, std::span<const std::byte> data);
  // Begins to receive, if it does not yet.
  void listen();
  // Gives what has arrived to arrive(peer, header, data). Call listen() first.
  template <class Arrive>
  void receive(Arrive arrive) {
    for (int i = 0; i < 64; ++i) {
      std::int32_t done = 0;
      Arrival arrival{};
      runtime_.check(runtime_.table().test(&request_, &done, &arrival), "MPI_Test");
      if (done == 0) break;
      Header header;
      std::memcpy(&header, incoming_.data(), sizeof header);
      arrive(arrival.source, header,
             std::span<const std::byte>(incoming_.data(), arrival.bytes).subspan(sizeof header));
      post_receive();
    }
  }
  // Frees those that MPI has sent.
  void free_sent();
  bool all_sent() const { return outgoing_.empty(); }
  // Ends the receive, or gives it up after `grace`.
  void close(std::chrono::milliseconds grace) noexcept;

 private:
  struct Outgoing {
    std::vector<std::byte> bytes;
    Request request;
  };

  void post_receive();

  Runtime& runtime_;
  Comm comm_;
  std::vector<std::byte> incoming_;
  Request request_{};
  bool listening_ = false;
  std::list<Outgoing> outgoing_;
  std::vector<std::int32_t> tags_;  // by peer: the last one, or 0
};

}  // namespace weft::net::mpi::internal

// Matches the messages that arrive at one rank with the receives that it posts: by (peer, channel),
// in the order sent.
//
// A message that is expected lands in the receiver's own buffer; one that is not waits here, in
// memory that grows with the bytes that came. No locks and no waiting inside: the owner guards it.
#pragma once

#include <map>
#include <unordered_map>
#include <vector>

#include "weft/net/endpoint.h"

namespace weft::net::internal {

// One call's transfers that are not complete yet, and the threads that copy into its buffers
// without the owner's lock.
struct Operation {
  int pending = 0;
  int writers = 0;
  bool collects = false;            // whether the names of what is complete are wanted
  std::vector<std::uint32_t> done;  // those names

  void complete(std::uint32_t id) {
    --pending;
    if (collects) done.push_back(id);
  }
};

// A posted receive. It must stay where it is until `done`, or until nothing is delivered any more.
struct Receipt {
  Recv recv;
  Operation* operation = nullptr;
  std::uint64_t received = 0;
  bool done = false;
  std::uint32_t id = 0;
};

// A piece of message number `message` (from 0, counted by the sender for each peer and channel).
struct Piece {
  int peer = -1;
  Channel channel = 0;
  std::uint64_t message = 0;
  std::uint64_t total = 0;
  std::uint64_t offset = 0;
  std::size_t length = 0;
  Label::Bytes label{};
};

inline Label::Bytes label_of(const Send& send) {
  return send.label == nullptr ? Label::Bytes{} : send.label->bytes;
}

// Bytes of early messages that an endpoint within a host keeps of each peer.
inline constexpr std::size_t kMailboxBytes = std::size_t{64} << 20;

class Mailbox {
 public:
  // At most `room` bytes of each peer wait for a receive: has_room() says when to stop taking more.
  Mailbox(int rank, int world, std::size_t room)
      : rank_(rank), room_(room), queues_(world), waiting_(world) {}

  // True where a message that is whole and has not been seen yet is what a receive of `bytes` bytes
  // from its peer and channel would get if it were posted now: it then counts as posted and
  // complete, and the caller copies it.
  bool take_whole(const Piece& piece, std::size_t bytes);
  // Whether nothing of (peer, channel) has arrived or is posted that is not complete.
  bool is_clear(int peer, Channel channel) { return queue_of(peer, channel).open.empty(); }

  // Gives the next message of (receipt.recv.peer, channel) to `receipt`. Throws MismatchError when
  // its label is another, Error(kInvalidArgument) when its length is.
  void post(Channel channel, Receipt& receipt);

  // True where a receive is posted for this piece, or its peer's unexpected bytes are below the
  // limit.
  bool has_room(const Piece& piece) const;

  // Where the piece's bytes go; end() makes them count. Between the two the place stays valid, as
  // long as a receipt's buffer does. Throws as post() does, Error(kCorrupt) when the message's
  // pieces disagree.
  std::byte* begin(const Piece& piece);
  void end(const Piece& piece);
  // The operation whose buffer begin() gave, if it was not a buffer of ours.
  Operation* target(const Piece& piece);

  // A peer whose next message on `channel` has begun to arrive and has no receive yet; -1 when
  // there is none. Peers take turns.
  int any(Channel channel);

  std::size_t waiting_bytes(int peer) const { return waiting_[peer]; }

 private:
  struct Part {
    std::vector<std::byte> bytes;
    bool complete = false;
  };
  struct Message {
    bool begun = false;
    std::uint64_t total = 0;
    std::uint64_t received = 0;
    Receipt* receipt = nullptr;
    Label::Bytes label{};
    std::map<std::uint64_t, Part> parts;  // by offset
  };
  struct ChannelQueue {
    std::uint64_t posted = 0;  // receives so far: the number of the message that the next one gets
    std::map<std::uint64_t, Message> open;
  };

  // PeerQueues stay where they are. The one that was asked for last is remembered: most talk is on
  // one channel for a while.
  struct PeerQueues {
    std::unordered_map<Channel, ChannelQueue> all;
    Channel last = 0;
    ChannelQueue* queue = nullptr;  // of `last`
  };
  ChannelQueue& queue_of(int peer, Channel channel) {
    PeerQueues& queues = queues_[peer];
    if (queues.queue == nullptr || queues.last != channel) {
      queues.queue = &queues.all[channel];
      queues.last = channel;
    }
    return *queues.queue;
  }

  void check_match(const Message& message, int peer, Channel channel) const;
  void absorb(Message& message, int peer, std::map<std::uint64_t, Part>::iterator part);
  void finish(ChannelQueue& queue, std::map<std::uint64_t, Message>::iterator message);

  int rank_;
  std::size_t room_;
  std::vector<PeerQueues> queues_;    // by peer
  std::vector<std::size_t> waiting_;  // by peer: memory that parts hold
  int turn_ = 0;
};

}  // namespace weft::net::internal

// Matches arriving messages with posted receives by (peer, channel), in the order sent.
//
// An expected message is stored in the receiver's buffer. An unexpected message waits here, in
// memory that grows with the received bytes. Has no locks and never waits; the owner guards it.
#pragma once

#include <functional>
#include <map>
#include <unordered_map>
#include <vector>

#include "weft/net/endpoint.h"

namespace weft::net::internal {

// Incomplete transfers of one call, and the threads that copy to its buffers without the owner's
// lock.
struct Operation {
  int pending = 0;
  int writers = 0;
  bool collects = false;            // whether to collect the ids of completed transfers
  std::vector<std::uint32_t> done;  // ids of completed transfers

  void complete(std::uint32_t id) {
    --pending;
    if (collects) done.push_back(id);
  }
};

// A posted receive. It must stay valid until `done`, or until delivery has stopped.
struct Receipt {
  Recv recv;
  Operation* operation = nullptr;
  std::uint64_t received = 0;
  bool done = false;
  std::uint32_t id = 0;
  bool awaited = false;  // the rank waits for it; see has_room()
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

// Limit of unexpected bytes per peer for endpoints within a host.
inline constexpr std::size_t kMailboxBytes = std::size_t{64} << 20;

class Mailbox {
 public:
  // At most `room` bytes of each peer wait for a receive. has_room() tells when to stop reading.
  Mailbox(int rank, int world, std::size_t room)
      : rank_(rank), room_(room), queues_(world), waiting_(world), awaited_(world) {}

  // Returns true if this new, complete message is the one that a receive of `bytes` bytes from its
  // peer and channel would get now. The receive then counts as posted and complete, and the caller
  // copies the message.
  bool take_whole(const Piece& piece, std::size_t bytes);
  // True if no incomplete message of (peer, channel) has arrived and no incomplete receive is
  // posted.
  bool is_clear(int peer, Channel channel) { return queue_of(peer, channel).open.empty(); }

  // Assigns the next message of (receipt.recv.peer, channel) to `receipt`. Throws MismatchError for
  // another label, and Error(kInvalidArgument) for another length.
  void post(Channel channel, Receipt& receipt);

  // True if a receive is posted for this piece, or the unexpected bytes of its peer are below the
  // limit. Always true while this rank waits for a message of the peer: it may be behind the piece,
  // and nothing would make room.
  bool has_room(const Piece& piece) const;
  // This rank begins or ends to wait for a message of the peer (-1: of any), whose receive is not
  // `awaited`.
  void wait_for(int peer, bool begin);

  // Returns the destination of the piece's bytes; end() completes it. The destination stays valid
  // in between, as long as the receipt's buffer does. Throws as post() does, and Error(kCorrupt) if
  // the pieces of the message contradict each other. `early`: set to true if it is the first piece
  // of a message that has no receive yet.
  std::byte* begin(const Piece& piece, bool* early = nullptr);
  void end(const Piece& piece);
  // The operation whose buffer begin() returned; null for the mailbox's own buffer.
  Operation* target(const Piece& piece);

  // Returns a peer whose next message on `channel` has begun to arrive and has no receive yet, or
  // -1. Peers take turns. Leaves out peers for which `may` is false; null: none.
  int any(Channel channel, const std::function<bool(int peer)>& may = nullptr);

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
    std::uint64_t posted = 0;  // receives so far, which is the number of the next message
    std::map<std::uint64_t, Message> open;
  };

  // PeerQueues do not move. The last used one is cached, since consecutive messages often use the
  // same channel.
  struct PeerQueues {
    std::unordered_map<Channel, ChannelQueue> all;
    Channel last = 0;
    ChannelQueue* queue = nullptr;  // queue of channel `last`
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
  std::vector<std::size_t> waiting_;  // by peer: memory held by parts
  std::vector<int> awaited_;          // by peer: messages that this rank waits for
  int turn_ = 0;
};

}  // namespace weft::net::internal

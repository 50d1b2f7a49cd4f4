// Transfer of a snapshot to a member that lacks entries which the leader no longer has: one part at
// a time, so that heartbeats pass between them.
#pragma once

#include <memory>
#include <string>

#include "weft/store/internal/message.h"
#include "weft/store/internal/raft_options.h"

namespace weft::store::internal {

// The encoded snapshot of the leader, kept while members need it.
class EncodedSnapshot {
 public:
  std::shared_ptr<const std::string> of(const Snapshot& snapshot);

 private:
  std::weak_ptr<const std::string> bytes_;
  Index index_ = 0;
};

// The leader's side of a transfer to one member.
class OutgoingSnapshot {
 public:
  OutgoingSnapshot(const Snapshot& snapshot, std::shared_ptr<const std::string> bytes)
      : bytes_(std::move(bytes)), index_(snapshot.index), term_(snapshot.term) {}

  Index index() const { return index_; }
  // False while a part is under way that may still arrive: for as long as `patience`.
  bool is_due(Time now, Time patience) const {
    return sent_ == Time::min() || now - sent_ >= patience;
  }
  // Makes `message` the next part.
  void fill(Message& message, Time now);
  // The member has all bytes before the reply's offset. False for a reply to another transfer.
  bool acknowledge(const Message& reply);

 private:
  std::shared_ptr<const std::string> bytes_;
  Index index_;
  Term term_;
  std::uint64_t offset_ = 0;
  Time sent_ = Time::min();  // Time::min(): the part at offset_ was not sent
};

// The receiver's side. Invariant: the bytes are a beginning of one snapshot.
class IncomingSnapshot {
 public:
  // False if a part claims a snapshot that is larger than any store.
  static bool is_allowed(const Message& part);
  // Adds a part, if it is the next one. A part of another snapshot begins a new transfer.
  void add(const Message& part);
  void clear() { bytes_.clear(); }
  std::size_t size() const { return bytes_.size(); }
  // Call it when all bytes have come. Throws Error(kCorrupt) for bytes that are not this snapshot.
  Snapshot take();

 private:
  std::string bytes_;
  Index index_ = 0;
  Term term_ = 0;
};

}  // namespace weft::store::internal

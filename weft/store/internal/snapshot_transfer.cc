#include "weft/store/internal/snapshot_transfer.h"

#include <utility>

namespace weft::store::internal {

std::shared_ptr<const std::string> EncodedSnapshot::of(const Snapshot& snapshot) {
  auto bytes = bytes_.lock();
  if (!bytes || index_ != snapshot.index) {
    bytes = std::make_shared<const std::string>(encode(snapshot));
    bytes_ = bytes;
    index_ = snapshot.index;
  }
  return bytes;
}

void OutgoingSnapshot::fill(Message& message, Time now) {
  constexpr std::size_t kPart = 256 * 1024;
  sent_ = now;
  message.index = index_;
  message.log_term = term_;
  message.offset = offset_;
  message.total = bytes_->size();
  message.data = bytes_->substr(offset_, kPart);
}

bool OutgoingSnapshot::acknowledge(const Message& reply) {
  if (reply.index != index_ || reply.offset > bytes_->size()) return false;
  offset_ = reply.offset;
  sent_ = Time::min();
  return true;
}

bool IncomingSnapshot::is_allowed(const Message& part) {
  // A store holds at most 64 MiB of keys and values, and answers of sessions.
  constexpr std::uint64_t kMost = std::uint64_t{512} << 20;
  return part.total <= kMost;
}

void IncomingSnapshot::add(const Message& part) {
  if (part.index != index_ || part.log_term != term_) bytes_.clear();
  index_ = part.index;
  term_ = part.log_term;
  if (part.offset == bytes_.size()) bytes_ += part.data;
}

Snapshot IncomingSnapshot::take() {
  Snapshot snapshot = decode_snapshot(std::exchange(bytes_, {}));
  if (snapshot.index != index_ || snapshot.term != term_) ByteReader::fail();
  return snapshot;
}

}  // namespace weft::store::internal

// Transfer of a snapshot to a member that lacks entries which the leader no longer has: one part at
// a time, so that heartbeats pass between them.
#include "weft/store/internal/raft.h"

namespace weft::store::internal {
namespace {

constexpr std::size_t kPart = 256 * 1024;
// A store holds at most 64 MiB of keys and values, and answers of sessions.
constexpr std::uint64_t kMaxSnapshot = std::uint64_t{512} << 20;

}  // namespace

std::shared_ptr<const std::string> Raft::encoded_snapshot() {
  auto bytes = encoded_.lock();
  if (!bytes || encoded_index_ != log_.snapshot().index) {
    bytes = std::make_shared<const std::string>(encode(log_.snapshot()));
    encoded_ = bytes;
    encoded_index_ = log_.snapshot().index;
  }
  return bytes;
}

// Sends the next part, unless one is under way.
void Raft::send_snapshot(MemberId to, Peer& peer) {
  if (!peer.transfer || peer.transfer->index < log_.base()) {
    peer.transfer =
        Transfer{encoded_snapshot(), log_.snapshot().index, log_.snapshot().term, 0, Time::min()};
  }
  Transfer& transfer = *peer.transfer;
  if (transfer.sent != Time::min() && now_ - transfer.sent < 4 * options_.timing.heartbeat) return;
  transfer.sent = now_;
  Message m = message(Message::Type::kSnapshot, to);
  m.index = transfer.index;
  m.log_term = transfer.term;
  m.offset = transfer.offset;
  m.total = transfer.bytes->size();
  m.data = transfer.bytes->substr(transfer.offset, kPart);
  send(std::move(m));
}

void Raft::on_snapshot(const Message& m) {
  if (m.term < term() || m.total > kMaxSnapshot) return;
  Message reply = message(Message::Type::kSnapshotReply, m.from);
  const bool known =
      m.index <= commit_ || (log_.has(m.index) && log_.term_at(m.index) == m.log_term);
  if (m.index != incoming_index_ || m.log_term != incoming_term_ || known) incoming_.clear();
  incoming_index_ = m.index;
  incoming_term_ = m.log_term;
  if (!known && m.offset == incoming_.size()) incoming_ += m.data;
  reply.accepted = known || incoming_.size() >= m.total;
  reply.index = m.index;
  reply.offset = incoming_.size();
  if (known) {  // the snapshot is of committed entries
    commit_ = std::max(commit_, m.index);
    reply.index = commit_;
  } else if (reply.accepted) {
    Snapshot snapshot = decode_snapshot(std::exchange(incoming_, {}));
    if (snapshot.index != m.index || snapshot.term != m.log_term) ByteReader::fail();
    log_.install(std::move(snapshot));
    commit_ = log_.base();
    unsaved_.snapshot = true;
  }
  send(std::move(reply));
}

void Raft::on_snapshot_reply(const Message& m) {
  const auto found = peers_.find(m.from);
  if (!leads() || m.term != term() || found == peers_.end()) return;
  Peer& peer = found->second;
  peer.heard = now_;
  if (m.accepted) {
    peer.match = std::max(peer.match, m.index);
    peer.next = peer.match + 1;
    peer.transfer.reset();
    peer.probing = true;
    peer.waiting = false;
    dirty_ = true;
  } else if (peer.transfer && peer.transfer->index == m.index &&
             m.offset <= peer.transfer->bytes->size()) {
    peer.transfer->offset = m.offset;
    peer.transfer->sent = Time::min();
    send_snapshot(m.from, peer);
  }
}

}  // namespace weft::store::internal

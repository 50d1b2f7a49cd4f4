// Replication of the leader's log, and the commit index.
#include <algorithm>

#include "weft/store/internal/raft.h"

namespace weft::store::internal {
namespace {

constexpr std::size_t kMaxBatch = std::size_t{1} << 20;

}  // namespace

void Raft::send_entries(MemberId to, Peer& peer) {
  if (peer.next <= log_.base()) send_snapshot(to, peer);
  Message m = message(Message::Type::kAppend, to);
  if (!peer.transfer) {  // else: only the heartbeat, which every log agrees with
    m.index = peer.next - 1;
    m.log_term = log_.term_at(m.index);
    m.entries = log_.slice(peer.next, kMaxBatch);
    m.commit = commit_;
    if (!peer.probing) peer.next += m.entries.size();
    peer.waiting = peer.probing;
    peer.told = commit_;
  }
  m.round = quorum_round_;
  peer.told_round = quorum_round_;
  peer.sent = now_;
  dirty_ = dirty_ || (!peer.probing && peer.next <= log_.last());
  send(std::move(m));
}

void Raft::on_append(const Message& m) {
  Message reply = message(Message::Type::kAppendReply, m.from);
  reply.round = m.round;
  const Index known = commit_;
  if (m.term < term()) {
    reply.round = 0;  // tells an earlier leader of the new term
  } else if (m.index < known) {
    // Committed entries are the same everywhere.
    accept_entries(m);
    reply.accepted = true;
    reply.index = std::max(known, std::min(log_.last(), m.index + m.entries.size()));
  } else if (m.index > log_.last() || log_.term_at(m.index) != m.log_term) {
    reply.index = std::min(log_.last(), m.index - 1);
    while (reply.index > known && log_.term_at(reply.index) > m.log_term) --reply.index;
  } else {
    accept_entries(m);
    reply.accepted = true;
    reply.index = m.index + m.entries.size();
  }
  if (reply.accepted) commit_ = std::max(commit_, std::min(m.commit, reply.index));
  send(std::move(reply));
}

// Adds the entries after the commit index. An entry of another term replaces the log from there on.
void Raft::accept_entries(const Message& m) {
  Index index = m.index;
  for (const LogEntry& entry : m.entries) {
    if (++index <= commit_) continue;
    if (log_.has(index)) {
      if (log_.term_at(index) == entry.term) continue;
      log_.truncate(index);
    }
    log_.append(entry);
    unsaved_.from = unsaved_.from == 0 ? index : std::min(unsaved_.from, index);
  }
}

void Raft::on_append_reply(const Message& m) {
  const auto found = peers_.find(m.from);
  if (!leads() || m.term != term() || found == peers_.end()) return;
  Peer& peer = found->second;
  peer.heard = now_;
  peer.round = std::max(peer.round, m.round);
  peer.waiting = false;
  if (m.accepted) {
    peer.match = std::max(peer.match, m.index);
    peer.next = std::max(peer.next, peer.match + 1);
    if (peer.transfer && peer.match >= log_.base()) peer.transfer.reset();
    if (!peer.transfer) peer.probing = false;
  } else if (!peer.transfer) {
    peer.next = std::max(peer.match, std::min(peer.next - 1, m.index)) + 1;
    peer.probing = true;
  }
  dirty_ = true;
}

// Commits what a quorum has, if its last entry is of this term (section 5.4.2).
void Raft::advance_commit() {
  const auto match = [&](MemberId id) -> Index {
    if (id == options_.me) return log_.last();
    const auto peer = peers_.find(id);
    return peer == peers_.end() ? 0 : peer->second.match;
  };
  const Index index = options_.flaw == Flaw::kCommitsAlone
                          ? log_.last()
                          : agreed_index(log_.configuration(), match);
  if (index <= commit_) return;
  if (log_.term_at(index) != term()) return;
  commit_ = index;
  dirty_ = true;
  finish_change();
}

// Completes a change of the voters when its first step is committed.
void Raft::finish_change() {
  const Configuration& configuration = log_.configuration();
  if (log_.configuration_index() > commit_) return;
  if (configuration.find(options_.me) == nullptr) return follow(term(), 0);
  if (!configuration.is_joint() || !is_settled()) return;
  ByteWriter out;
  put(out, end_change(configuration));
  append(LogEntry::Kind::kConfiguration, out.take());
  follow_configuration();
  advance_commit();
}

// Adds and removes peers, so that they are the other members of the newest configuration.
void Raft::follow_configuration() {
  const Configuration& configuration = log_.configuration();
  std::erase_if(peers_,
                [&](const auto& peer) { return configuration.find(peer.first) == nullptr; });
  for (const Member& member : configuration.members) {
    if (member.id == options_.me || peers_.contains(member.id)) continue;
    Peer& peer = peers_[member.id];
    peer.next = log_.last() + 1;
    peer.heard = now_;
    peer.sent = now_ - options_.timing.heartbeat;
  }
}

}  // namespace weft::store::internal

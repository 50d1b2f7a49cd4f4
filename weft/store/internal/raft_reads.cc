// Reads that see every change acknowledged before them. The leader notes its commit index, asks a
// quorum whether it still leads (all reads since the last flush together), and then lets the
// reader answer from any state at or after that index.
#include <algorithm>

#include "weft/store/internal/raft.h"

namespace weft::store::internal {

bool Raft::read(std::uint64_t round) {
  if (leads()) {
    add_read(options_.me, round);
    return true;
  }
  if (leader_ == 0) return false;
  Message m = message(Message::Type::kRead, leader_);
  m.round = round;
  send(std::move(m));
  return true;
}

void Raft::add_read(MemberId from, std::uint64_t round) { reads_.push_back({from, round, 0, 0}); }

// Begins the reads that have come, and ends those that a quorum has confirmed. A leader does not
// know the commit index before an entry of its own term is committed; reads wait for it.
void Raft::confirm_reads() {
  if (!is_settled() || reads_.empty()) return;
  const bool begins = std::any_of(reads_.begin(), reads_.end(),
                                  [](const PendingRead& read) { return read.quorum_round == 0; });
  if (begins) {
    ++quorum_round_;
    dirty_ = true;
  }
  for (PendingRead& read : reads_) {
    if (read.quorum_round != 0) continue;
    read.quorum_round = quorum_round_;
    read.index = commit_;
  }
  const auto confirmed = [&](const PendingRead& read) {
    return options_.flaw == Flaw::kReadsWithoutQuorum ||
           is_quorum(log_.configuration(), [&](MemberId id) {
             const auto peer = peers_.find(id);
             return id == options_.me ||
                    (peer != peers_.end() && peer->second.round >= read.quorum_round);
           });
  };
  const auto done = std::stable_partition(
      reads_.begin(), reads_.end(), [&](const PendingRead& read) { return !confirmed(read); });
  for (auto read = done; read != reads_.end(); ++read) {
    if (read->from == options_.me) {
      ready_.push_back({read->round, read->index});
      continue;
    }
    Message reply = message(Message::Type::kReadReply, read->from);
    reply.round = read->round;
    reply.index = read->index;
    send(std::move(reply));
  }
  reads_.erase(done, reads_.end());
}

}  // namespace weft::store::internal

// How a leader finds what each follower lacks, and keeps it busy.
//
//   probing     One message at a time, and heartbeats, until a reply says that the logs agree.
//               A refusal moves `next` back, at once to the place that the follower proposes.
//   streaming   The logs agree up to `match`. Entries are sent without waiting for replies: `next`
//               moves on as they are sent. A refusal means that some were lost: back to probing.
//   snapshot    `next` lies before the log's first entry. One part at a time; meanwhile only empty
//               heartbeats, so that the follower keeps its leader.
//
// `match` only grows, and only replies of this term count (sender()). So agreed() never counts an
// entry that a follower does not have.
#include "weft/store/internal/followers.h"

#include <algorithm>
#include <limits>

namespace weft::store::internal {
namespace {

constexpr std::size_t kMaxBatch = std::size_t{1} << 20;

}  // namespace

void Followers::begin(Term term, const Log& log, Time now) {
  term_ = term;
  round_ = 0;
  checked_ = now;
  peers_.clear();
  update(log, now);
}

void Followers::update(const Log& log, Time now) {
  const Configuration& configuration = log.configuration();
  std::erase_if(peers_,
                [&](const auto& peer) { return configuration.find(peer.first) == nullptr; });
  for (const Member& member : configuration.members) {
    if (member.id == me_ || peers_.contains(member.id)) continue;
    Peer& peer = peers_[member.id];
    peer.next = log.last() + 1;
    peer.heard = now;
    // Due at once: the first message also announces the new leader.
    peer.sent = now - timing_.heartbeat;
  }
}

void Followers::heartbeat(const MemberLog& log, Time now, Outbox& out) {
  for (const auto& [id, peer] : peers_) {
    if (now - peer.sent >= timing_.heartbeat) send_entries(id, log, now, out);
  }
}

void Followers::tell(const MemberLog& log, Time now, Outbox& out) {
  for (const auto& [id, peer] : peers_) {
    const bool news =
        peer.next <= log.log().last() || peer.told < log.commit() || peer.told_round < round_;
    const bool busy = peer.transfer || (peer.probing && peer.waiting);
    if (news && !busy) send_entries(id, log, now, out);
  }
}

void Followers::send_entries(MemberId to, const MemberLog& member_log, Time now, Outbox& out) {
  const Log& log = member_log.log();
  Peer& peer = peers_.at(to);
  if (peer.next <= log.base()) send_snapshot(to, log, now, out);
  Message& m = out.add(Message::Type::kAppend, to, term_);
  if (!peer.transfer) {  // else: only the heartbeat, which every log agrees with
    m.index = peer.next - 1;
    m.log_term = log.term_at(m.index);
    m.entries = log.slice(peer.next, kMaxBatch);
    m.commit = member_log.commit();
    if (!peer.probing) peer.next += m.entries.size();
    peer.waiting = peer.probing;
    peer.told = m.commit;
  }
  m.round = round_;
  peer.told_round = round_;
  peer.sent = now;
}

// Sends the next part, unless one is under way.
void Followers::send_snapshot(MemberId to, const Log& log, Time now, Outbox& out) {
  Peer& peer = peers_.at(to);
  if (!peer.transfer || peer.transfer->index() < log.base())
    peer.transfer.emplace(log.snapshot(), snapshot_.of(log.snapshot()));
  if (peer.transfer->is_due(now, 4 * timing_.heartbeat))
    peer.transfer->fill(out.add(Message::Type::kSnapshot, to, term_), now);
}

// Null if the reply is not one to this leader.
Followers::Peer* Followers::sender(const Message& reply) {
  const auto found = peers_.find(reply.from);
  return found == peers_.end() || reply.term != term_ ? nullptr : &found->second;
}

void Followers::on_append_reply(const Message& reply, const Log& log, Time now) {
  Peer* const peer = sender(reply);
  if (peer == nullptr) return;
  peer->heard = now;
  peer->round = std::max(peer->round, reply.round);
  peer->waiting = false;
  if (reply.accepted) {
    peer->match = std::max(peer->match, reply.index);
    peer->next = std::max(peer->next, peer->match + 1);
    if (peer->transfer && peer->match >= log.base()) peer->transfer.reset();
    if (!peer->transfer) peer->probing = false;
  } else if (!peer->transfer) {
    peer->next = std::max(peer->match, std::min(peer->next - 1, reply.index)) + 1;
    peer->probing = true;
  }
}

void Followers::on_snapshot_reply(const Message& reply, const Log& log, Time now, Outbox& out) {
  Peer* const peer = sender(reply);
  if (peer == nullptr) return;
  peer->heard = now;
  if (reply.accepted) {
    peer->match = std::max(peer->match, reply.index);
    peer->next = peer->match + 1;
    peer->transfer.reset();
    peer->probing = true;
    peer->waiting = false;
  } else if (peer->transfer && peer->transfer->acknowledge(reply)) {
    send_snapshot(reply.from, log, now, out);
  }
}

void Followers::disconnected(MemberId member, Time now) {
  if (const auto peer = peers_.find(member); peer != peers_.end())
    // Counts as silent at once, but it is not removed yet.
    peer->second.heard = std::min(peer->second.heard, now - timing_.election);
}

const Followers::Peer* Followers::find(MemberId member) const {
  const auto found = peers_.find(member);
  return found == peers_.end() ? nullptr : &found->second;
}

std::uint64_t Followers::confirmed_round(const Configuration& configuration) const {
  return agreed_index(configuration, [&](MemberId id) -> std::uint64_t {
    const Peer* const peer = find(id);
    return id == me_ ? round_ : peer == nullptr ? 0 : peer->round;
  });
}

Index Followers::agreed(const Log& log) const {
  return agreed_index(log.configuration(), [&](MemberId id) -> Index {
    const Peer* const peer = find(id);
    return id == me_ ? log.last() : peer == nullptr ? 0 : peer->match;
  });
}

bool Followers::has_lost_quorum(const Configuration& configuration, Time now) {
  if (now - checked_ < timing_.election) return false;
  checked_ = now;
  return !is_quorum(configuration, [&](MemberId id) { return hears(id, timing_.election, now); });
}

bool Followers::hears(MemberId member, Time within, Time now) const {
  const Peer* const peer = find(member);
  return member == me_ || (peer != nullptr && now - peer->heard < within);
}

Index Followers::lag(MemberId member, const Log& log) const {
  if (member == me_) return 0;
  const Peer* const peer = find(member);
  const bool is_known = peer != nullptr && peer->match > 0;
  return is_known ? log.last() - peer->match : std::numeric_limits<Index>::max();
}

Time Followers::next() const {
  Time first = checked_ + timing_.election;
  for (const auto& [id, peer] : peers_) first = std::min(first, peer.sent + timing_.heartbeat);
  return first;
}

}  // namespace weft::store::internal

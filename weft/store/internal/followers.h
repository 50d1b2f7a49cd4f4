// The other members as a leader sees them: what each has of the log, when it was heard, and which
// rounds of reads it has answered. Empty while this member does not lead.
//
// Invariant: while this member leads, these are the other members of the newest configuration, and
// entries up to `match` of a follower are in its log.
#pragma once

#include <map>
#include <optional>

#include "weft/store/internal/member_log.h"
#include "weft/store/internal/outbox.h"
#include "weft/store/internal/snapshot_transfer.h"

namespace weft::store::internal {

class Followers {
 public:
  Followers(MemberId me, const RaftTiming& timing) : me_(me), timing_(timing) {}

  // This member begins to lead this term.
  void begin(Term term, const Log& log, Time now);
  void end() { peers_.clear(); }
  // Adds and removes followers after a change of the configuration.
  void update(const Log& log, Time now);

  // ---- messages to them
  // Heartbeats that are due.
  void heartbeat(const MemberLog& log, Time now, Outbox& out);
  // What is new to those that await no reply.
  void tell(const MemberLog& log, Time now, Outbox& out);
  // Begins a round of reads: asks all whether this member still leads. Returns its number.
  std::uint64_t begin_round() { return ++round_; }

  // ---- messages from them. Those of other members and other terms are ignored.
  void on_append_reply(const Message& reply, const Log& log, Time now);
  void on_snapshot_reply(const Message& reply, const Log& log, Time now, Outbox& out);
  // The connection to this member has ended: its time is over sooner.
  void disconnected(MemberId member, Time now);

  // ---- views
  std::uint64_t round() const { return round_; }
  // The newest round of reads that a quorum has answered.
  std::uint64_t confirmed_round(const Configuration& configuration) const;
  // The last entry that a quorum has.
  Index agreed(const Log& log) const;
  // True if it is time to look, and no quorum was heard lately.
  bool has_lost_quorum(const Configuration& configuration, Time now);
  bool hears(MemberId member, Time within, Time now) const;
  // Entries that it lacks; the highest number if unknown.
  Index lag(MemberId member, const Log& log) const;
  // When heartbeat() and has_lost_quorum() must be called next.
  Time next() const;

 private:
  struct Peer {
    Index match = 0;
    Index next = 1;
    Index told = 0;        // commit index that it was told
    bool probing = true;   // one message at a time, until a common entry is found
    bool waiting = false;  // for the reply to a probe
    Time heard{};
    Time sent{};
    std::uint64_t round = 0;       // newest round of reads that it has answered
    std::uint64_t told_round = 0;  // … that it was asked
    std::optional<OutgoingSnapshot> transfer = {};
  };

  const Peer* find(MemberId member) const;
  Peer* sender(const Message& reply);
  void send_entries(MemberId to, const MemberLog& log, Time now, Outbox& out);
  void send_snapshot(MemberId to, const Log& log, Time now, Outbox& out);

  MemberId me_;
  RaftTiming timing_;
  Term term_ = 0;  // that this member leads
  std::map<MemberId, Peer> peers_;
  std::uint64_t round_ = 0;  // newest round of reads
  Time checked_{};           // last check of the quorum
  EncodedSnapshot snapshot_;
};

}  // namespace weft::store::internal

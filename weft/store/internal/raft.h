// Raft, the consensus of the replicated store, as a pure state machine: messages and time go in,
// messages come out. No sockets, threads, files or clocks.
//
//   Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm", 2014: election,
//     replication, snapshots, and joint consensus for a change of the voters (configuration.h)
//   Ongaro, "Consensus: Bridging Theory and Practice", 2014: reads by index (6.4), pre-vote (9.6)
//
// The owner repeats: give it messages, time and calls; flush(); write what take_unsaved() names to
// the journal; then send take_messages(), apply entries up to commit(), answer take_reads().
//
// Each part keeps its own state: election.h who leads, member_log.h the log, followers.h a leader's
// view of the others, leader_reads.h the reads that wait for it. This class joins them.
#pragma once

#include <utility>
#include <vector>

#include "weft/store/internal/election.h"
#include "weft/store/internal/followers.h"
#include "weft/store/internal/leader_reads.h"
#include "weft/store/internal/member_log.h"
#include "weft/store/internal/outbox.h"
#include "weft/store/internal/raft_options.h"
#include "weft/store/internal/snapshot_transfer.h"

namespace weft::store::internal {

class Raft {
 public:
  struct Unsaved {
    bool vote = false;
    MemberLog::Unsaved log;
  };
  struct ReadyRead {
    std::uint64_t round;
    Index index;  // apply up to here, then answer the read
  };

  Raft(const RaftOptions& options, Vote vote, Log log);

  // ---- in
  void advance(Time now);
  void receive(const Message& message);
  // The connection to this member has ended: if it leads, its time is over sooner.
  void disconnected(MemberId member);
  // Asks for votes now. For the first member of a new store.
  void campaign() { ask_for_votes(true); }
  // Appends a command. False if this member does not lead.
  bool propose(std::string command);
  // Reads, of this member, get their index by take_reads(). If another member leads, it is asked;
  // the answer may be lost. False if no leader is known.
  bool read(std::uint64_t round);
  // Begins a change of members. False if this member does not lead, or if it is too early: an
  // earlier change is not complete, or no entry of the leader's own term is committed yet.
  bool change(const Configuration& next);
  // Takes a snapshot of the state at an index up to commit().
  void compact(Snapshot snapshot) { log_.compact(std::move(snapshot)); }
  // Tells the other members what is new, once for all calls since the last time.
  void flush();

  // ---- out
  std::vector<Message> take_messages() { return out_.take(); }
  std::vector<ReadyRead> take_reads() { return std::exchange(ready_, {}); }
  Unsaved take_unsaved() { return {election_.take_unsaved(), log_.take_unsaved()}; }
  Index commit() const { return log_.commit(); }
  const Log& log() const { return log_.log(); }
  const Vote& vote() const { return election_.vote(); }
  bool leads() const { return election_.leads(); }
  Term term() const { return election_.term(); }
  // 0: unknown.
  MemberId leader() const { return election_.leader(); }
  const RaftOptions& options() const { return options_; }
  // A leader whose term has a committed entry: it knows all that is committed.
  bool is_settled() const { return leads() && commit() >= term_start_; }
  // True if the newest configuration is committed.
  bool configuration_is_committed() const { return log_.configuration_is_committed(); }

  // Time since a leader was last heard; 0 if this member leads.
  Time without_leader() const { return election_.without_leader(now_); }

  // ---- a leader's view of another member
  // True if it has been heard within this time.
  bool hears(MemberId member, Time within) const { return followers_.hears(member, within, now_); }
  // Entries that it lacks; the highest number if unknown.
  Index lag(MemberId member) const { return followers_.lag(member, log()); }
  // When advance() must be called next.
  Time next() const;

 private:
  // ---- election
  void follow(Term term, MemberId leader);
  void ask_for_votes(bool is_real);
  void end_election_if_won();
  void lead();
  void on_vote_request(const Message& message);
  // ---- replication
  void append(LogEntry::Kind kind, std::string data);
  void append(const Configuration& configuration);
  void on_append(const Message& message);
  void on_snapshot(const Message& message);
  void advance_commit();
  void finish_change();
  // ---- reads
  void confirm_reads();

  const RaftOptions options_;
  Time now_{};
  Election election_;
  MemberLog log_;
  IncomingSnapshot incoming_;
  // Of a leader.
  Followers followers_;
  LeaderReads reads_;
  Index term_start_ = 0;  // first entry of its term

  Outbox out_;
  std::vector<ReadyRead> ready_;
};

}  // namespace weft::store::internal

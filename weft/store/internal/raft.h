// Raft, the consensus of the replicated store, as a pure state machine: messages and time go in,
// messages come out. No sockets, threads, files or clocks.
//
//   Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm", 2014: election,
//     replication, snapshots, and joint consensus for a change of the voters (configuration.h)
//   Ongaro, "Consensus: Bridging Theory and Practice", 2014: reads by index (6.4), pre-vote (9.6)
//
// The owner repeats: give it messages, time and calls; flush(); write what take_unsaved() names to
// the journal; then send take_messages(), apply entries up to commit(), answer take_reads().
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "weft/base/random.h"
#include "weft/store/internal/message.h"

namespace weft::store::internal {

// Time of the member's own clock, which never goes back. Each step of it is limited (Node), so it
// is late after a pause.
using Time = std::chrono::nanoseconds;

// For tests of the tests: breaks a rule on purpose.
enum class Flaw : std::uint8_t {
  kNone,
  kReadsWithoutQuorum,  // a leader answers reads without asking whether it still leads
  kVotesTwice,          // a member votes for several candidates of a term
  kForgetsSessions,     // a repeated request is applied again
  kCommitsAlone,        // a leader commits what only it has
  kOneStepChanges,      // voters change without joint consensus
  kTrustsClock,         // a jump of the clock counts as time
};

struct RaftTiming {
  Time heartbeat = std::chrono::milliseconds(50);
  // A follower that hears no leader for this long, or up to twice as long, asks for votes.
  Time election = std::chrono::milliseconds(400);
};

struct RaftOptions {
  MemberId me = 0;
  std::uint64_t cluster = 0;
  std::uint64_t seed = 0;
  RaftTiming timing;
  Flaw flaw = Flaw::kNone;
};

class Raft {
 public:
  enum class Role { kFollower, kPreCandidate, kCandidate, kLeader };
  // What a member must never forget, besides its log.
  struct Vote {
    Term term = 0;
    MemberId candidate = 0;
    bool operator==(const Vote&) const = default;
  };
  struct Unsaved {
    bool vote = false;
    bool snapshot = false;  // installed: write everything again
    Index from = 0;         // entries from here on have changed; 0: none
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
  void campaign();
  // Appends a command. False if this member does not lead.
  bool propose(std::string command);
  // Reads, of this member, get their index by take_reads(). If another member leads, it is asked;
  // the answer may be lost. False if no leader is known.
  bool read(std::uint64_t round);
  // Begins a change of members. False if this member does not lead, or if it is too early: an
  // earlier change is not complete, or no entry of the leader's own term is committed yet.
  bool change(const Configuration& next);
  // Takes a snapshot of the state at an index up to commit().
  void compact(Snapshot snapshot);
  void flush();

  // ---- out
  std::vector<Message> take_messages() { return std::exchange(messages_, {}); }
  std::vector<ReadyRead> take_reads() { return std::exchange(ready_, {}); }
  Unsaved take_unsaved() { return std::exchange(unsaved_, {}); }
  Index commit() const { return commit_; }
  const Log& log() const { return log_; }
  const Vote& vote() const { return vote_; }
  Role role() const { return role_; }
  bool leads() const { return role_ == Role::kLeader; }
  Term term() const { return vote_.term; }
  // 0: unknown.
  MemberId leader() const { return leader_; }
  const RaftOptions& options() const { return options_; }
  // A leader whose term has a committed entry: it knows all that is committed.
  bool is_settled() const { return leads() && commit_ >= term_start_; }

  // Time since a leader was last heard; 0 if this member leads.
  Time without_leader() const { return leads() ? Time(0) : now_ - led_at_; }

  // ---- a leader's view of another member
  // True if it has been heard within this time.
  bool hears(MemberId member, Time within) const;
  // Entries that it lacks; the highest number if unknown.
  Index lag(MemberId member) const;
  // When advance() must be called next.
  Time next() const;

 private:
  struct Transfer {  // of a snapshot
    std::shared_ptr<const std::string> bytes;
    Index index;
    Term term;
    std::uint64_t offset = 0;
    Time sent{};
  };
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
    std::optional<Transfer> transfer;
  };
  struct PendingRead {
    MemberId from;
    std::uint64_t round;  // the asker's number
    Index index;
    std::uint64_t quorum_round;  // of this leader
  };

  // raft.cc
  void send(Message message);
  Message message(Message::Type type, MemberId to) const;
  void follow(Term term, MemberId leader);
  void save_vote(Vote vote);
  void append(LogEntry::Kind kind, std::string data);
  // raft_election.cc
  bool is_up_to_date(const Message& message) const;
  bool heard_leader() const;
  void wait_again();
  void ask_for_votes(Role role);
  void lead();
  void on_vote_request(const Message& message);
  void on_vote_reply(const Message& message);
  void check_quorum();
  // raft_replication.cc
  void on_append(const Message& message);
  void accept_entries(const Message& message);
  void on_append_reply(const Message& message);
  void send_entries(MemberId to, Peer& peer);
  void advance_commit();
  void finish_change();
  void follow_configuration();
  // raft_snapshot.cc
  void send_snapshot(MemberId to, Peer& peer);
  void on_snapshot(const Message& message);
  void on_snapshot_reply(const Message& message);
  std::shared_ptr<const std::string> encoded_snapshot();
  // raft_reads.cc
  void add_read(MemberId from, std::uint64_t round);
  void confirm_reads();

  const RaftOptions options_;
  Random random_;
  Vote vote_;
  Log log_;
  Role role_ = Role::kFollower;
  MemberId leader_ = 0;
  Index commit_ = 0;
  Time now_{};
  Time heard_{};        // from the leader, or the last vote
  Time led_at_{};       // last time that a leader was heard
  Time patience_{};     // after heard_, an election
  bool dirty_ = false;  // peers have to be told something new

  std::set<MemberId> votes_;        // of a candidate
  std::map<MemberId, Peer> peers_;  // of a leader
  Index term_start_ = 0;            // of a leader: first entry of its term
  Time checked_{};                  // of a leader: last check of its quorum
  std::uint64_t quorum_round_ = 0;
  std::vector<PendingRead> reads_;
  // Encoded log().snapshot(), while members need it.
  std::weak_ptr<const std::string> encoded_;
  Index encoded_index_ = 0;
  std::string incoming_;  // bytes of a snapshot
  Index incoming_index_ = 0;
  Term incoming_term_ = 0;

  std::vector<Message> messages_;
  std::vector<ReadyRead> ready_;
  Unsaved unsaved_;
};

}  // namespace weft::store::internal

// The store process of one node as a pure state machine: consensus, the replicated state, leases,
// requests of local clients, and the node's membership. Time and messages go in, messages, answers
// and journal records come out. No sockets, threads, files or clocks.
//
//   request() ─► pending ─► command to the leader ─► log ─► applied on every node ─► answer, on the
//                   │                                                      node that was asked
//                   └─────► read: index from the leader ─► applied up to it ─► answer
#pragma once

#include <map>
#include <string>
#include <vector>

#include "weft/store/internal/lease_timers.h"
#include "weft/store/internal/raft.h"
#include "weft/store/internal/records.h"
#include "weft/store/status.h"

namespace weft::store::internal {

struct NodeOptions {
  std::uint32_t node = 0;
  // Node 0 founds the store once so many nodes, itself included, are ready to join. All nodes of a
  // job: then no second store can form while a node of the first one lives.
  std::uint32_t founders = 1;
  std::string address;  // at which other nodes reach this one
  std::uint64_t seed = 0;
  RaftTiming timing;
  // Silence after which a member is lost. It leaves, and must join again as a new member.
  Time lost_after = std::chrono::seconds(3);
  Flaw flaw = Flaw::kNone;
};

// A step of the clock counts as at most this: a jump of the clock ends a lease at most this early,
// and after a pause, members first hear what has come in the meantime.
inline constexpr Time kMaxStep = std::chrono::milliseconds(200);

class Node {
 public:
  using Token = std::uint64_t;  // of a client's connection, chosen by the owner
  struct ToNode {
    std::uint32_t node;
    Message message;
  };
  struct Answer {
    Token token;
    Response response;
  };
  // Effects, in the order in which they must happen.
  struct Output {
    bool restart_journal = false;  // `records` replace all earlier ones
    std::vector<std::string> records;
    std::vector<ToNode> messages;
    std::vector<Answer> answers;
    std::vector<std::string> notes;  // for the log
  };

  Node(const NodeOptions& options, Saved saved, Time now);

  // `now`: a clock that should not go back or jump, but may.
  void advance(Time now);
  void receive(std::uint32_t from, const Message& message);
  void connected(std::uint32_t node);
  void disconnected(std::uint32_t node);
  // Answered once, at the latest at its deadline. A later request with this token replaces it.
  void request(Token token, const Request& request);
  // Drops the token's request.
  void forget(Token token);
  // Why other nodes cannot be reached, for the messages of requests that fail.
  void note_trouble(std::string trouble) { trouble_ = std::move(trouble); }
  Output take();

  // When advance() must be called again, on the clock of advance().
  Time next() const;
  // Nodes to be connected with, and their addresses.
  std::map<std::uint32_t, std::string> peers() const;
  bool is_member() const { return raft_.has_value(); }
  const Raft* raft() const { return raft_ ? &*raft_ : nullptr; }
  const KeyValues& state() const { return state_; }
  Index applied() const { return applied_; }

 private:
  struct Pending {
    Request request;
    Time deadline{};
    Time submitted{};
    std::uint64_t leadership = 0;  // in which it was submitted; 0: not yet
  };
  struct Batch {  // of reads that share an index
    std::vector<Token> tokens;
    Time asked{};
    std::uint64_t leadership = 0;
    std::optional<Index> index;  // from the leader
  };
  struct Seeker {
    Member member;
    Time heard{};
  };

  // node.cc
  void note_leadership();
  void apply_entries();
  void apply_command(const LogEntry& entry);
  void take_over_snapshot();
  void save_changes();
  void take_snapshot_if_due();
  void send_messages();
  void write_everything();
  void send_to(std::uint32_t node, Message message);
  // node_requests.cc
  void submit(Token token, Pending& pending);
  void submit_again();
  void begin_reads();
  void end_reads();
  void wake_waits();
  void expire_requests();
  void answer(Token token, Response response);
  void answer_known();
  std::string state_of_service() const;
  StoreStatus status() const;
  std::uint64_t leadership() const;
  // node_members.cc
  void start_raft(Vote vote, Log log);
  void tend_members();
  void found();
  void ask_whether_member();
  void seek();
  Message join_request() const;
  void on_join(std::uint32_t from, const Message& message);
  void on_join_reply(const Message& message);
  void start_over();
  bool turns_away(std::uint32_t from, const Message& message);

  const NodeOptions options_;
  Random random_;
  Identity identity_;  // me 0: not a member yet
  std::optional<Raft> raft_;
  KeyValues state_;
  Index applied_ = 0;
  LeaseTimers timers_;
  std::map<Token, Pending> pending_;
  std::map<std::uint64_t, Token> writers_;  // client of a pending change -> token
  std::vector<Token> reads_;                // not yet in a batch
  std::map<std::uint64_t, Batch> batches_;  // by round
  std::uint64_t last_round_ = 0;
  Revision woken_ = 0;  // revision up to which waiting requests were checked
  std::size_t applied_bytes_ = 0, applied_entries_ = 0;  // since the snapshot

  Time clock_{};  // sum of the limited steps
  Time last_{};   // of the owner's clock
  Time tended_{};
  Time asked_{};
  Term led_ = 0;                               // term whose leases this node times; 0: none
  Term noted_ = 0;                             // term whose leader was logged
  std::map<MemberId, std::uint32_t> node_of_;  // of members that were heard
  std::map<std::uint32_t, Seeker> seekers_;
  std::map<std::uint32_t, std::string> known_;  // addresses that a newcomer has learned
  std::set<std::uint32_t> connected_;
  bool was_member_ = false;  // then a store exists, and this node must not found another one
  bool complained_ = false;  // that this node's number is taken
  std::string trouble_;
  Output output_;
};

}  // namespace weft::store::internal

// The store process of one node as a pure state machine: consensus, the replicated state, leases,
// requests of local clients, and the node's membership. Time and messages go in, messages, answers
// and journal records come out. No sockets, threads, files or clocks.
//
//   request() ─► pending ─► command to the leader ─► log ─► applied on every node ─► answer, on the
//                   │                                                      node that was asked
//                   └─────► read: index from the leader ─► applied up to it ─► answer
//
// Each part keeps its own state: raft.h the consensus, applied_state.h the data, client_requests.h
// the requests, node_messages.h the ways to other nodes, newcomer.h the time before membership.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "weft/base/random.h"
#include "weft/store/internal/applied_state.h"
#include "weft/store/internal/client_requests.h"
#include "weft/store/internal/limited_clock.h"
#include "weft/store/internal/newcomer.h"
#include "weft/store/internal/node_messages.h"
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

class Node {
 public:
  using Token = ClientRequests::Token;
  using ToNode = NodeMessages::ToNode;
  // Effects, in the order in which they must happen.
  struct Output {
    bool restart_journal = false;  // `records` replace all earlier ones
    std::vector<std::string> records;
    std::vector<ToNode> messages;
    std::vector<ClientRequests::Answer> answers;
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
  void forget(Token token) { requests_.forget(token); }
  // Why other nodes cannot be reached, for the messages of requests that fail.
  void note_trouble(std::string trouble) { trouble_ = std::move(trouble); }
  Output take();

  // When advance() must be called again, on the clock of advance().
  Time next() const;
  // Nodes to be connected with, and their addresses.
  Newcomer::Addresses peers() const;
  bool is_member() const { return raft_.has_value(); }
  const Raft* raft() const { return raft_ ? &*raft_ : nullptr; }
  const KeyValues& state() const { return state_.state(); }
  Index applied() const { return state_.applied(); }

 private:
  // node.cc
  void note_leadership();
  void apply_entries();
  void begin_reads();
  void end_reads();
  void save_changes();
  void take_snapshot_if_due();
  void send_messages();
  void write_everything();
  void submit(Token token);
  ClientRequests::Leadership leadership() const;
  std::string state_of_service() const;
  // node_members.cc
  void start_raft(Vote vote, Log log);
  void start_over();
  void found();
  void tend_members();
  void ask_whether_member();
  Message join_request() const;
  Message from_me(Message::Type type) const;
  void on_join(std::uint32_t from, const Message& message);
  void on_join_reply(const Message& message);
  bool turns_away(std::uint32_t from, const Message& message);

  const NodeOptions options_;
  LimitedClock clock_;
  Random random_;
  Identity identity_;  // me 0: not a member yet
  std::optional<Raft> raft_;
  AppliedState state_;
  ClientRequests requests_;
  NodeMessages messages_;
  Newcomer newcomer_;

  Time tended_{};   // last look at the members and at requests without an answer
  Time asked_{};    // whether this node is a member
  Term noted_ = 0;  // term whose leader was logged
  std::string trouble_;
  Output output_;
};

}  // namespace weft::store::internal

// The Node only computes. Its owner (server.cc) gives it messages, requests and time, and then
// calls take() for the effects: journal records, messages, answers. It performs them in this order.
// So nothing leaves the process that the journal does not have, and these hold:
//
//   - A vote is in the journal before the candidate gets it.
//   - An entry is in the journal before the leader hears that this member has it.
//   - A leader counts its own entries before they are in the journal. Answers that follow from it
//     leave in the same take(), behind the records.
//
// take() in its order:
//   1. Take over the state of a snapshot, if the log begins with one that is ahead.
//   2. A leader proposes the end of leases whose time is over.
//   3. Twice: begin reads, flush the consensus, apply what is committed, wake requests that wait
//      for a key. Those that the first pass wakes become reads, which need an index of their own.
//   4. Answer the reads whose index is applied.
//   5. Collect the records and the messages. A snapshot comes last: its records replace all others.
//
// A request is answered by the node that was asked, when that node applies it. So the client may
// lose the leader without losing its answer.
//
// One thread, no locks.
#include "weft/store/internal/node.h"

#include <algorithm>

namespace weft::store::internal {
namespace {

// Stream of the seed that gives the number of the first round of reads.
constexpr std::uint32_t kRoundStream = 1;

// `raft` null: the node is no member.
StoreStatus status_of(std::uint32_t node, const Raft* raft) {
  StoreStatus status;
  status.node = node;
  if (raft == nullptr) return status;
  const Configuration& configuration = raft->log().configuration();
  if (const Member* const leader = configuration.find(raft->leader())) status.leader = leader->node;
  status.term = raft->term();
  for (const MemberId voter : configuration.voters)
    status.voters.push_back(configuration.find(voter)->node);
  for (const Member& member : configuration.members) status.members.push_back(member.node);
  status.log_entries = raft->commit();
  return status;
}

}  // namespace

Node::Node(const NodeOptions& options, Saved saved, Time now)
    : options_(options),
      clock_(now, options.flaw == Flaw::kTrustsClock),
      random_(options.seed),
      state_(options.flaw != Flaw::kForgetsSessions),
      requests_(Random(options.seed, kRoundStream).next_u64() >> 1),
      newcomer_(options.node, options.founders) {
  if (saved.identity) {
    identity_ = *saved.identity;
    start_raft(saved.vote, std::move(saved.log));
  } else {
    start_over();
  }
}

void Node::advance(Time now) {
  clock_.advance(now);
  if (raft_) raft_->advance(clock_.now());
  if (requests_.next() <= clock_.now()) requests_.expire(clock_.now(), state_of_service());
  if (clock_.now() - tended_ < options_.timing.heartbeat) return;
  tended_ = clock_.now();
  tend_members();
  for (const Token token : requests_.overdue(leadership(), clock_.now())) submit(token);
}

Time Node::next() const {
  if (requests_.has_new_reads() && leadership() != 0) return clock_.owners_now();
  Time first = std::min(tended_ + options_.timing.heartbeat, requests_.next());
  if (raft_) first = std::min(first, raft_->next());
  if (raft_ && raft_->is_settled()) first = std::min(first, state_.next());
  return clock_.owners_time(first);
}

void Node::receive(std::uint32_t from, const Message& m) {
  using Type = Message::Type;
  if (m.type == Type::kJoin) return on_join(from, m);
  if (m.type == Type::kJoinReply) return on_join_reply(m);
  if (!raft_ || m.cluster != identity_.cluster) return;
  if (m.type == Type::kRemoved) {
    // A leader that does not know this member yet may be wrong.
    if (m.to != identity_.me || m.index <= identity_.added) return;
    output_.notes.push_back("node " + std::to_string(options_.node) +
                            " was silent for too long and has left the store; it joins again");
    return start_over();
  }
  if (turns_away(from, m) || m.to != identity_.me) return;
  messages_.heard(m.from, from);
  if (m.type != Type::kForward) return raft_->receive(m);
  const Request command = decode_request(m.data);
  if (command.client == 0 || !is_write(command.op) || command.op == Op::kExpire)
    throw Error(Errc::kCorrupt, "a node forwards what is not a command of a client");
  // The log need not grow by a command that was applied. One that is only proposed may come twice.
  if (!state().answered(command.client, command.sequence)) raft_->propose(m.data);
}

void Node::connected(std::uint32_t node) {
  messages_.connected(node);
  if (!raft_) messages_.send(node, join_request());
}

void Node::disconnected(std::uint32_t node) {
  messages_.disconnected(node);
  newcomer_.gone(node);
  if (!raft_) return;
  for (const MemberId member : messages_.members_at(node)) raft_->disconnected(member);
}

Node::Output Node::take() {
  if (raft_) {
    note_leadership();
    // Continues from the state of the leader, if the log does.
    // Entries within the snapshot are never applied here, so requests do not see them.
    if (state_.take_over(raft_->log().snapshot())) requests_.answer_known(state());
    if (raft_->is_settled()) {
      for (const Request& command : state_.expired(clock_.now())) raft_->propose(encode(command));
    }
    for (int pass = 0; pass < 2; ++pass) {  // the second one for reads that the first one woke
      begin_reads();
      raft_->flush();
      apply_entries();
      requests_.wake_waits(state());
    }
    end_reads();
    save_changes();
    send_messages();
    take_snapshot_if_due();
  }
  output_.messages = messages_.take();
  output_.answers = requests_.take_answers();
  return std::exchange(output_, {});
}

// A leader begins to time the leases; another node stops.
void Node::note_leadership() {
  const Term leads = raft_->leads() ? raft_->term() : 0;
  state_.time_leases(leads, clock_.now());
  if (leads == 0 || noted_ == leads) return;
  noted_ = leads;
  output_.notes.push_back("node " + std::to_string(options_.node) + " leads the store, term " +
                          std::to_string(leads));
}

void Node::apply_entries() {
  while (applied() < raft_->commit()) {
    if (const auto done = state_.apply(raft_->log().at(applied() + 1), clock_.now()))
      requests_.applied(done->first, done->second);
  }
}

// Puts all that must not be lost into the journal, which is written before messages are sent.
void Node::save_changes() {
  const Raft::Unsaved unsaved = raft_->take_unsaved();
  if (unsaved.log.snapshot) return write_everything();
  if (unsaved.vote) output_.records.push_back(vote_record(raft_->vote()));
  if (unsaved.log.from != 0)
    output_.records.push_back(entries_record(raft_->log(), unsaved.log.from));
}

void Node::write_everything() {
  output_.restart_journal = true;
  output_.records.clear();
  if (raft_) output_.records = all_records(identity_, raft_->vote(), raft_->log());
}

void Node::take_snapshot_if_due() {
  auto snapshot = state_.snapshot_if_due(raft_->log());
  if (!snapshot) return;
  raft_->compact(std::move(*snapshot));
  write_everything();
}

void Node::send_messages() {
  for (Message& message : raft_->take_messages())
    messages_.send(std::move(message), raft_->log().configuration());
}

// ---- requests

ClientRequests::Leadership Node::leadership() const {
  // The term in the upper bits: another leader or term is another leadership, and requests go out
  // again.
  return raft_ && raft_->leader() != 0 ? (raft_->term() << 20) ^ raft_->leader() : 0;
}

void Node::request(Token token, const Request& asked) {
  if (asked.client == 0 || asked.sequence == 0 || asked.op == Op::kExpire) {
    forget(token);
    requests_.answer_now(token, {.status = Status::kInvalid,
                                 .sequence = asked.sequence,
                                 .text = "this request is not one of a client"});
  } else if (asked.op == Op::kStatus) {
    forget(token);
    requests_.answer_now(token, {.sequence = asked.sequence,
                                 .value = Value{encode(status_of(options_.node, raft())), 0}});
  } else {
    requests_.add(token, asked, state(), clock_.now());
    submit(token);
  }
}

// Hands a change to the leader. The answer comes when this node applies it.
void Node::submit(Token token) {
  if (leadership() == 0) return;
  auto command = requests_.submit(token, leadership(), clock_.now());
  if (!command || raft_->propose(*command)) return;
  Message message = from_me(Message::Type::kForward);
  message.to = raft_->leader();
  message.term = raft_->term();
  message.data = std::move(*command);
  messages_.send(std::move(message), raft_->log().configuration());
}

// Asks for one index for all reads that have come.
void Node::begin_reads() {
  if (leadership() == 0) return;
  if (const auto round = requests_.begin_reads(leadership(), clock_.now())) raft_->read(*round);
}

// Answers reads whose index has come and is applied.
void Node::end_reads() {
  for (const Raft::ReadyRead& ready : raft_->take_reads())
    requests_.set_index(ready.round, ready.index);
  requests_.end_reads(state(), applied());
}

// The reason why a request is not answered.
std::string Node::state_of_service() const {
  const std::string node = "node " + std::to_string(options_.node);
  const std::string trouble = trouble_.empty() ? "" : "; " + trouble_;
  if (!raft_)
    return node + " has not joined the job's store yet; it waits for " +
           std::to_string(options_.founders) + " nodes and reaches " +
           std::to_string(messages_.connected().size() + 1) +
           "; check that every node was started, with the same addresses" + trouble;
  const Configuration& configuration = raft_->log().configuration();
  std::size_t reached = 0;
  for (const MemberId voter : configuration.voters) {
    const Member* const member = configuration.find(voter);
    reached += voter == identity_.me || messages_.connected().contains(member->node) ? 1 : 0;
  }
  const std::string voters = std::to_string(reached) + " of the " +
                             std::to_string(configuration.voters.size()) + " nodes that decide";
  if (raft_->leader() == 0)
    return "the job's store has no leader: " + node + " reaches " + voters +
           "; a majority is needed" + trouble;
  return "the job's store did not answer in time; " + node + " reaches " + voters;
}

}  // namespace weft::store::internal

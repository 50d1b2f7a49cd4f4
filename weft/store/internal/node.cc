#include "weft/store/internal/node.h"

#include <algorithm>

namespace weft::store::internal {

Node::Node(const NodeOptions& options, Saved saved, Time now)
    : options_(options),
      random_(options.seed),
      state_(options.flaw != Flaw::kForgetsSessions),
      last_(now) {
  if (saved.identity) {
    identity_ = *saved.identity;
    start_raft(saved.vote, std::move(saved.log));
  } else {
    start_over();
  }
}

void Node::advance(Time now) {
  const bool trusts = options_.flaw == Flaw::kTrustsClock;
  clock_ += std::clamp(now - last_, Time(0), trusts ? Time::max() : kMaxStep);
  last_ = now;
  if (raft_) raft_->advance(clock_);
  expire_requests();
  if (clock_ - tended_ < options_.timing.heartbeat) return;
  tended_ = clock_;
  tend_members();
  submit_again();
}

Time Node::next() const {
  if (!reads_.empty() && leadership() != 0) return last_;
  Time first = tended_ + options_.timing.heartbeat;
  if (raft_) first = std::min(first, raft_->next());
  if (raft_ && raft_->is_settled()) first = std::min(first, timers_.next());
  for (const auto& [token, pending] : pending_) first = std::min(first, pending.deadline);
  return last_ + std::clamp(first - clock_, Time(0), kMaxStep / 2);
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
  node_of_[m.from] = from;
  if (m.type != Type::kForward) return raft_->receive(m);
  const Request command = decode_request(m.data);
  if (command.client == 0 || !is_write(command.op) || command.op == Op::kExpire)
    throw Error(Errc::kCorrupt, "a node forwards what is not a command of a client");
  if (!state_.answered(command.client, command.sequence)) raft_->propose(m.data);
}

void Node::connected(std::uint32_t node) {
  connected_.insert(node);
  if (!raft_) send_to(node, join_request());
}

void Node::disconnected(std::uint32_t node) {
  connected_.erase(node);
  seekers_.erase(node);
  if (!raft_) return;
  for (const auto& [id, its_node] : node_of_) {
    if (its_node == node) raft_->disconnected(id);
  }
}

Node::Output Node::take() {
  if (raft_) {
    note_leadership();
    take_over_snapshot();
    if (raft_->is_settled()) {
      for (const Request& command : timers_.expired(state_, clock_))
        raft_->propose(encode(command));
    }
    for (int pass = 0; pass < 2; ++pass) {  // the second one for reads that the first one woke
      begin_reads();
      raft_->flush();
      apply_entries();
      wake_waits();
    }
    end_reads();
    save_changes();
    send_messages();
    take_snapshot_if_due();
  }
  return std::exchange(output_, {});
}

// A leader begins to time the leases; another node stops.
void Node::note_leadership() {
  const Term leads = raft_->leads() ? raft_->term() : 0;
  if (leads != led_) {
    led_ = leads;
    timers_.stop_all();
    if (leads != 0) timers_.start_all(state_, clock_);
  }
  if (leads == 0 || noted_ == leads) return;
  noted_ = leads;
  output_.notes.push_back("node " + std::to_string(options_.node) + " leads the store, term " +
                          std::to_string(leads));
}

void Node::apply_entries() {
  while (applied_ < raft_->commit()) {
    const LogEntry& entry = raft_->log().at(++applied_);
    ++applied_entries_;
    applied_bytes_ += entry.data.size();
    if (entry.kind == LogEntry::Kind::kCommand) apply_command(entry);
  }
}

void Node::apply_command(const LogEntry& entry) {
  const Request command = decode_request(entry.data);
  const auto response = state_.apply(command);
  if (!response) return;
  if (led_ != 0) timers_.applied(command, *response, state_, clock_);
  const auto writer = writers_.find(command.client);
  if (writer == writers_.end()) return;
  const auto pending = pending_.find(writer->second);
  if (pending->second.request.sequence == command.sequence) answer(writer->second, *response);
}

// Continues from the state of the leader, if the log does.
void Node::take_over_snapshot() {
  const Snapshot& snapshot = raft_->log().snapshot();
  if (applied_ >= snapshot.index) return;
  state_.restore(snapshot.state);
  applied_ = snapshot.index;
  applied_bytes_ = applied_entries_ = 0;
  answer_known();
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
  if (identity_.me == 0) return;
  output_.records.push_back(identity_record(identity_));
  output_.records.push_back(vote_record(raft_->vote()));
  const Log& log = raft_->log();
  if (log.snapshot().index > 0) output_.records.push_back(snapshot_record(log.snapshot()));
  if (log.last() > log.snapshot().index)
    output_.records.push_back(entries_record(log, log.snapshot().index + 1));
}

void Node::take_snapshot_if_due() {
  constexpr std::size_t kEntries = 4096, kBytes = std::size_t{4} << 20;
  const std::size_t last = raft_->log().snapshot().state.size();
  if (applied_entries_ < kEntries && applied_bytes_ < std::max(kBytes, last)) return;
  raft_->compact({applied_, raft_->log().term_at(applied_), raft_->log().configuration_at(applied_),
                  state_.snapshot()});
  applied_bytes_ = applied_entries_ = 0;
  write_everything();
}

void Node::send_messages() {
  for (Message& message : raft_->take_messages()) {
    const MemberId to = message.to;
    const Member* const member = raft_->log().configuration().find(to);
    const auto heard = node_of_.find(to);
    if (heard != node_of_.end()) {
      send_to(heard->second, std::move(message));
    } else if (member != nullptr) {
      send_to(member->node, std::move(message));
    }
  }
}

void Node::send_to(std::uint32_t node, Message message) {
  output_.messages.push_back({node, std::move(message)});
}

}  // namespace weft::store::internal

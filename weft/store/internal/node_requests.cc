// Requests of this node's clients, from their arrival to their answer.
#include <algorithm>

#include "weft/store/internal/node.h"

namespace weft::store::internal {
namespace {

// A request without an answer for this long is sent again: its message may be lost.
constexpr Time kSendAgain = std::chrono::milliseconds(500);

}  // namespace

// Names a leader and its term; 0: none is known.
std::uint64_t Node::leadership() const {
  return raft_ && raft_->leader() != 0 ? (raft_->term() << 20) ^ raft_->leader() : 0;
}

void Node::request(Token token, const Request& asked) {
  forget(token);
  if (asked.client == 0 || asked.sequence == 0 || asked.op == Op::kExpire) {
    output_.answers.push_back({token,
                               {.status = Status::kInvalid,
                                .sequence = asked.sequence,
                                .text = "this request is not one of a client"}});
    return;
  }
  if (asked.op == Op::kStatus) {
    output_.answers.push_back(
        {token, {.sequence = asked.sequence, .value = Value{encode(status()), 0}}});
    return;
  }
  Pending& pending = pending_[token];
  pending.request = asked;
  pending.deadline = clock_ + std::chrono::milliseconds(asked.wait_ms);
  if (is_write(asked.op)) {
    if (const auto old = writers_.find(asked.client); old != writers_.end()) forget(old->second);
    writers_[asked.client] = token;
    if (auto known = state_.answered(asked.client, asked.sequence)) {
      answer(token, std::move(*known));
    } else {
      submit(token, pending);
    }
  } else if (asked.op != Op::kWait || state_.changed_since(asked.key, asked.revision)) {
    pending.request.op = asked.op == Op::kGet ? Op::kGet : Op::kList;
    reads_.push_back(token);
  }
}

void Node::forget(Token token) {
  const auto pending = pending_.find(token);
  if (pending == pending_.end()) return;
  const Request& request = pending->second.request;
  if (const auto writer = writers_.find(request.client);
      is_write(request.op) && writer != writers_.end() && writer->second == token)
    writers_.erase(writer);
  pending_.erase(pending);
}

void Node::answer(Token token, Response response) {
  const auto pending = pending_.find(token);
  if (pending == pending_.end()) return;
  response.sequence = pending->second.request.sequence;
  forget(token);
  output_.answers.push_back({token, std::move(response)});
}

// Hands a change to the leader. The answer comes when this node applies it. The end of a session
// has no answer.
void Node::submit(Token token, Pending& pending) {
  if (leadership() == 0) return;
  pending.leadership = leadership();
  pending.submitted = clock_;
  std::string command = encode(pending.request);
  if (!raft_->propose(command)) {
    Message message;
    message.type = Message::Type::kForward;
    message.cluster = identity_.cluster;
    message.from = identity_.me;
    message.to = raft_->leader();
    message.term = raft_->term();
    message.data = std::move(command);
    const Member* const leader = raft_->log().configuration().find(message.to);
    const auto heard = node_of_.find(message.to);
    if (heard != node_of_.end())
      send_to(heard->second, std::move(message));
    else if (leader != nullptr)
      send_to(leader->node, std::move(message));
  }
  if (pending.request.op == Op::kEndSession) forget(token);
}

void Node::submit_again() {
  const std::uint64_t now = leadership();
  for (auto next = pending_.begin(); next != pending_.end();) {
    const Token token = next->first;
    Pending& pending = (next++)->second;
    if (is_write(pending.request.op) &&
        (pending.leadership != now || clock_ - pending.submitted >= kSendAgain))
      submit(token, pending);
  }
  for (auto batch = batches_.begin(); batch != batches_.end();) {
    const auto next_batch = std::next(batch);
    const bool is_old =
        batch->second.leadership != now || clock_ - batch->second.asked >= kSendAgain;
    if (!batch->second.index && is_old) {
      reads_.insert(reads_.end(), batch->second.tokens.begin(), batch->second.tokens.end());
      batches_.erase(batch);
    }
    batch = next_batch;
  }
}

// Asks for one index for all reads that have come.
void Node::begin_reads() {
  if (reads_.empty() || leadership() == 0 || !raft_->read(last_round_ + 1)) return;
  batches_[++last_round_] = {std::exchange(reads_, {}), clock_, leadership(), std::nullopt};
}

// Answers reads whose index has come and is applied.
void Node::end_reads() {
  for (const Raft::ReadyRead& ready : raft_->take_reads()) {
    if (const auto batch = batches_.find(ready.round); batch != batches_.end())
      batch->second.index = ready.index;
  }
  for (auto batch = batches_.begin(); batch != batches_.end();) {
    const auto next_batch = std::next(batch);
    if (batch->second.index && *batch->second.index <= applied_) {
      for (const Token token : batch->second.tokens) {
        const auto pending = pending_.find(token);
        if (pending != pending_.end() && !is_write(pending->second.request.op))
          answer(token, state_.read(pending->second.request));
      }
      batches_.erase(batch);
    }
    batch = next_batch;
  }
}

// Requests that wait for a change become reads when it comes.
void Node::wake_waits() {
  if (woken_ == state_.revision()) return;
  for (auto& [token, pending] : pending_) {
    Request& request = pending.request;
    if (request.op != Op::kWait ||
        !state_.changed_since(request.key, std::max(request.revision, woken_)))
      continue;
    request.op = Op::kList;
    reads_.push_back(token);
  }
  woken_ = state_.revision();
}

// After another member's state was taken over: the answers to changes that it includes.
void Node::answer_known() {
  std::vector<Answer> known;
  for (const auto& [token, pending] : pending_) {
    if (!is_write(pending.request.op)) continue;
    if (auto response = state_.answered(pending.request.client, pending.request.sequence))
      known.push_back({token, std::move(*response)});
  }
  for (Answer& one : known) answer(one.token, std::move(one.response));
}

void Node::expire_requests() {
  std::vector<Token> late;
  for (const auto& [token, pending] : pending_) {
    if (pending.deadline <= clock_) late.push_back(token);
  }
  for (const Token token : late)
    answer(token, {.status = Status::kTimeout, .text = state_of_service()});
}

StoreStatus Node::status() const {
  StoreStatus status;
  status.node = options_.node;
  if (!raft_) return status;
  const Configuration& configuration = raft_->log().configuration();
  if (const Member* const leader = configuration.find(raft_->leader()))
    status.leader = leader->node;
  status.term = raft_->term();
  for (const MemberId voter : configuration.voters)
    status.voters.push_back(configuration.find(voter)->node);
  for (const Member& member : configuration.members) status.members.push_back(member.node);
  status.log_entries = raft_->commit();
  return status;
}

// The reason why a request is not answered.
std::string Node::state_of_service() const {
  const std::string node = "node " + std::to_string(options_.node);
  const std::string trouble = trouble_.empty() ? "" : "; " + trouble_;
  if (!raft_)
    return node + " has not joined the job's store yet; it waits for " +
           std::to_string(options_.founders) + " nodes and reaches " +
           std::to_string(connected_.size() + 1) +
           "; check that every node was started, with the same addresses" + trouble;
  const Configuration& configuration = raft_->log().configuration();
  std::size_t reached = 0;
  for (const MemberId voter : configuration.voters) {
    const Member* const member = configuration.find(voter);
    reached += voter == identity_.me || connected_.contains(member->node) ? 1 : 0;
  }
  const std::string voters = std::to_string(reached) + " of the " +
                             std::to_string(configuration.voters.size()) + " nodes that decide";
  if (raft_->leader() == 0)
    return "the job's store has no leader: " + node + " reaches " + voters +
           "; a majority is needed" + trouble;
  return "the job's store did not answer in time; " + node + " reaches " + voters;
}

}  // namespace weft::store::internal

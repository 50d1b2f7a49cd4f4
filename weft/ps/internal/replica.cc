// Along the chain, a member has at least the commands of the next one, and what is committed is at
// every member. The code keeps this so:
//
//   down   submit() applies a command, numbers it and sends it in one call. A member takes an entry
//          only if its number follows its own last one. A gap is dropped, and tick() sends again.
//   up     The last member commits what it applies. An acknowledgment carries the sender's
//          committed position to the member before it, and so on to the first one, which answers.
//
// A message counts only in the view in which it was sent, and only between neighbors. So what is
// still on its way when the members change can do no harm. adopt() then, in this order: finds the
// neighbors; starts over with a new one, which must tell what it has; commits everything if no
// member follows; tells the member before it what this one has.
//
// A server that joins goes through three states:
//
//   has no state        does not hold up commits: the only member commits alone, and notes how far
//                       (committed_alone_)
//   has the state       holds up commits, so it lacks nothing that is committed from here on
//   has all up to       what was committed without it, and what had been applied when the view
//                       began (applied_at_view_): promotion() makes it a member
#include "weft/ps/internal/replica.h"

#include <algorithm>
#include <utility>

namespace weft::ps::internal {
namespace {

Answer elsewhere(const Request& request) {
  Answer answer;
  answer.id = request.id;
  answer.outcome = Outcome::kElsewhere;
  return answer;
}

Answer refused(const Request& request, std::string text) {
  Answer answer = invalid(std::move(text));
  answer.id = request.id;
  return answer;
}

}  // namespace

Replica::Replica(const Settings& settings)
    : settings_(settings),
      shard_(settings.memory_bytes, settings.flaw != Flaw::kForgetsClients, settings.files),
      replies_(settings.flaw == Flaw::kAnswersEarly) {}

void Replica::adopt(const View& view) {
  if (view.number <= view_.number || is_out_) return;
  const bool is_new = !view_.has(me());
  view_ = view;
  if (!view.has(me())) {
    if (is_new) return;  // it has not joined yet
    is_out_ = true;
    replies_.give_up();
    for (const Waiting& one : waiting_) replies_.give(one.token, elsewhere(one.pull));
    waiting_.clear();
    return;
  }
  // The founder of the shard begins with the empty state. Others join before they are members.
  if (is_new && view.joining != me()) receiver_.found();
  std::vector<Member> chain = view.members;
  if (view.joining) chain.push_back(*view.joining);
  const auto here = std::find(chain.begin(), chain.end(), me());
  const auto previous = here == chain.begin() ? std::nullopt : std::optional(*(here - 1));
  if (previous != previous_) receiver_.restart();
  previous_ = previous;
  const auto next = here + 1 == chain.end() ? std::nullopt : std::optional(*(here + 1));
  if (next != next_.member()) next_.replace(next);
  // What was committed before this view is within this.
  applied_at_view_ = applied_;
  if (!next) commit(applied_);
  if (commits_alone()) commit(committed_alone_ = applied_);
  send_ack();
  serve_waiting();
}

std::optional<View> Replica::promotion() const {
  const bool is_last = !is_out_ && !view_.members.empty() && view_.members.back() == me();
  if (!is_last || !view_.joining) return std::nullopt;
  const bool has_all = next_.has() && *next_.has() >= std::max(applied_at_view_, committed_alone_);
  if (!has_all && settings_.flaw != Flaw::kJoinsEarly) return std::nullopt;
  View next = view_;
  ++next.number;
  next.members.push_back(*next.joining);
  next.joining.reset();
  return next;
}

void Replica::request(Token token, const Request& request, std::span<std::byte> target) {
  if (!is_first() || request.view > view_.number) {
    return replies_.give(token, elsewhere(request));
  }
  if (request.op == Op::kStats || request.op == Op::kSave) {
    Answer answer;
    if (request.op == Op::kStats)
      answer.payload = encode(shard_.stats());
    else
      answer = next_.needs_state() ? save_.refuse_save("the state goes to another server now")
                                   : save_.piece(request, shard_);
    answer.id = request.id;
    answer.version = shard_.version();
    // What a read shows must be committed, too, before a client may see it.
    return answer_at(applied_, token, std::move(answer));
  }
  if (!is_command(request.op)) {
    waiting_.push_back({token, request, target, std::string(request.payload)});
    // The request is gone after this call. Elements of a list never move, so the view of the copy
    // stays valid.
    waiting_.back().pull.payload = waiting_.back().keys;
    return serve_waiting();
  }
  if (is_of_server(request.op)) {
    return replies_.give(token, refused(request, "only a server gives this command"));
  }
  const Shard::Turn turn = shard_.turn(request);
  if (turn == Shard::Turn::kRepeated) return answer_at(applied_, token, shard_.answered(request));
  // It may be early: the one before it may wait for slower workers.
  if (request.op == Op::kPullDelta) {
    waiting_.push_back({token, request, {}, {}});
    waiting_.back().pull.payload = {};
    return serve_waiting();
  }
  // An earlier one got lost; the client sends both again.
  if (turn == Shard::Turn::kEarly) return;
  Answer answer = submit(request);
  answer_at(applied_, token, std::move(answer));
  serve_waiting();
}

void Replica::forget(Token token) {
  std::erase_if(waiting_, [&](const Waiting& one) { return one.token == token; });
  replies_.forget(token);
}

void Replica::drop(std::uint32_t worker, std::uint64_t client) {
  if (!is_first()) return;
  Request command;
  command.op = Op::kDrop;
  command.shard = settings_.shard;
  command.worker = worker;
  command.client = client;
  submit(command);
  serve_waiting();
}

// Numbers a command, applies it, and passes it on. If the first server lacks memory for it, the
// command becomes a refusal on all servers. Any other server must apply it.
Answer Replica::submit(const Request& command) {
  Request applied = command;
  applied.in_memory = false;
  std::string refusal;
  Answer answer;
  try {
    answer = shard_.apply(command);
  } catch (const Error& error) {
    const bool lacks = error.code() == Errc::kUnavailable || error.code() == Errc::kInvalidArgument;
    if (previous_ || !lacks) throw;
    refusal = encode(refuse(error.code(), error.message()));
    applied.op = Op::kRefuse;
    applied.payload = refusal;
    answer = shard_.apply(applied);
  }
  ++applied_;
  if (next_.member()) send_next(next_.add(applied_, encode(applied)));
  const bool is_alone = settings_.flaw == Flaw::kIgnoresJoining && next_.member() == view_.joining;
  if (!next_.member() || is_alone) commit(applied_);
  if (commits_alone()) commit(committed_alone_ = applied_);
  return answer;
}

// The only member does not wait while the state of the joining server is under way.
bool Replica::commits_alone() const {
  return is_first() && view_.members.size() == 1 && next_.member() && !next_.has();
}

bool Replica::is_ready(const Request& pull) const {
  const std::uint64_t before = is_command(pull.op) ? pull.sequence - 1 : pull.sequence;
  return shard_.has_applied(pull.client, before) && shard_.is_ready(pull);
}

void Replica::serve_waiting() {
  if (!is_first()) return;
  for (auto one = waiting_.begin(); one != waiting_.end();) {
    const auto next = std::next(one);
    if (is_ready(one->pull)) {
      answer_pull(*one);
      waiting_.erase(one);
    }
    one = next;
  }
}

void Replica::answer_pull(const Waiting& waiting) {
  const Request& pull = waiting.pull;
  if (is_command(pull.op)) {
    // The client may have sent it again over another connection.
    Answer answer =
        shard_.turn(pull) == Shard::Turn::kRepeated ? shard_.answered(pull) : submit(pull);
    return answer_at(applied_, waiting.token, std::move(answer));
  }
  Answer answer = shard_.check_pull(pull);
  answer.id = pull.id;
  if (answer.outcome == Outcome::kDone) {
    const std::size_t bytes = shard_.pull_bytes(pull);
    if (pull.in_memory && waiting.target.size() < bytes) {
      answer = refused(pull, "the shared memory has " + std::to_string(waiting.target.size()) +
                                 " bytes for " + std::to_string(bytes) + " bytes of values");
    } else if (pull.in_memory) {
      shard_.read(pull, waiting.target.first(bytes));
    } else {
      answer.payload = std::exchange(spare_, {});
      answer.payload.resize(bytes);
      shard_.read(pull, std::as_writable_bytes(std::span(answer.payload)));
    }
    // All members must know which values the worker has now, so this is a command.
    if (pull.op == Op::kPull && shard_.marks() && pull.worker != kNoWorker) {
      Request mark = pull;
      mark.op = Op::kMark;
      submit(mark);
    }
  }
  answer_at(applied_, waiting.token, std::move(answer));
}

void Replica::send(const Member& to, ChainMessage message) {
  message.shard = settings_.shard;
  message.view = view_.number;
  message.from = me();
  message.to = to;
  message.committed = committed();
  messages_.push_back({to.server, encode(message)});
}

void Replica::send_next(const NextMember::Messages& messages) {
  for (const ChainMessage& message : messages) send(*next_.member(), message);
}

void Replica::send_ack() {
  if (!previous_ || is_out_) return;
  send(*previous_, {.kind = ChainMessage::Kind::kAck,
                    .position = receiver_.has_state() ? applied_ : kNothing,
                    .transfer = receiver_.transfer(),
                    .piece = receiver_.pieces()});
}

void Replica::tick() {
  if (is_out_) return;
  send_ack();
  if (next_.member()) send_next(next_.tick(applied_));
}

void Replica::announce_pause(std::chrono::milliseconds pause) {
  if (is_out_) return;
  const ChainMessage alive{.kind = ChainMessage::Kind::kAlive,
                           .position = applied_,
                           .pause_ms = static_cast<std::uint64_t>(pause.count())};
  if (previous_) send(*previous_, alive);
  if (next_.member()) send(*next_.member(), alive);
}

std::uint64_t Replica::work_of(const Request& request) const {
  const bool begins_save = request.op == Op::kSave && request.version == 0;
  return request.payload.size() + (begins_save ? shard_.bytes() : 0);
}

std::uint64_t Replica::work_of(const ChainMessage& message) const {
  const bool begins_state = message.kind == ChainMessage::Kind::kAck &&
                            message.position == kNothing && message.from == next_.member() &&
                            !next_.needs_state();
  return message.payload.size() + (begins_state ? shard_.bytes() : 0) + receiver_.work_of(message);
}

void Replica::receive(const ChainMessage& message) {
  if (is_out_ || !(message.to == me())) return;
  if (message.view != view_.number) return;
  if (message.kind == ChainMessage::Kind::kAck) {
    if (message.from == next_.member()) take_ack(message);
    return;
  }
  if (!previous_ || !(message.from == *previous_)) return;
  if (message.kind == ChainMessage::Kind::kEntry) take_entry(message);
  if (message.kind == ChainMessage::Kind::kState) take_state(message);
}

void Replica::take_entry(const ChainMessage& message) {
  if (!receiver_.has_state()) return;
  if (message.position == applied_ + 1) submit(decode_request(message.payload));
  send_ack();
}

void Replica::take_state(const ChainMessage& message) {
  // The whole state counts as applied up to the command at which its sender began it.
  if (receiver_.take(message, shard_)) {
    applied_ = message.position;
    commit(next_.member() ? std::min(message.committed, message.position) : applied_);
  }
  send_ack();
}

void Replica::take_ack(const ChainMessage& message) {
  send_next(next_.take_ack(message, shard_, applied_));
  // Only one reader of the rows at a time: the state for the next member comes before a save.
  if (next_.needs_state()) return save_.interrupt();
  const std::uint64_t before = committed();
  commit(message.committed);
  next_.commit(committed());
  if (committed() != before) send_ack();
}

std::string Replica::describe() const {
  std::string text = "server " + std::to_string(me().server) + ": view " +
                     std::to_string(view_.number) + (is_out_ ? ", out" : "") +
                     (receiver_.has_state() ? "" : ", no state") + ", applied " +
                     std::to_string(applied_) + ", committed " + std::to_string(committed());
  if (previous_) text += ", after server " + std::to_string(previous_->server);
  return text + next_.describe();
}

}  // namespace weft::ps::internal

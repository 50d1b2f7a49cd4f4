#include "weft/ps/internal/replica.h"

#include <algorithm>
#include <utility>

namespace weft::ps::internal {
namespace {

// Position in an acknowledgment of a server that has no state yet.
constexpr std::uint64_t kNothing = ~std::uint64_t{0};
// Ticks without progress after which commands are sent again; pieces of a state, which are larger.
constexpr int kCommandsAgain = 3, kStateAgain = 10;

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
      shard_(settings.memory_bytes, settings.flaw != Flaw::kForgetsClients, settings.files) {}

void Replica::adopt(const View& view) {
  if (view.number <= view_.number || is_out_) return;
  const bool is_new = !view_.has(me());
  view_ = view;
  if (!view.has(me())) {
    if (is_new) return;  // it has not joined yet
    is_out_ = true;
    for (auto& [position, reply] : uncommitted_) {
      reply.answer.outcome = Outcome::kElsewhere;
      replies_.push_back(std::move(reply));
    }
    uncommitted_.clear();
    for (const Waiting& one : waiting_) replies_.push_back({one.token, elsewhere(one.pull)});
    waiting_.clear();
    return;
  }
  // The founder of the shard begins with the empty state. Others join before they are members.
  if (is_new && view.joining != me()) has_state_ = true;
  std::vector<Member> chain = view.members;
  if (view.joining) chain.push_back(*view.joining);
  const auto here = std::find(chain.begin(), chain.end(), me());
  const auto previous = here == chain.begin() ? std::nullopt : std::optional(*(here - 1));
  if (previous != previous_) receives_ = received_ = 0;
  previous_ = previous;
  const auto next = here + 1 == chain.end() ? std::nullopt : std::optional(*(here + 1));
  if (next != next_) {
    next_ = next;
    next_has_.reset();
    next_needs_state_ = false;
    state_bytes_.clear();
    silent_ticks_ = 0;
  }
  applied_at_view_ = applied_;
  if (!next_) {
    log_.clear();
    commit(applied_);
  }
  if (commits_alone()) commit(committed_alone_ = applied_);
  send_ack();
  serve_waiting();
}

std::optional<View> Replica::promotion() const {
  const bool is_last = !is_out_ && !view_.members.empty() && view_.members.back() == me();
  if (!is_last || !view_.joining) return std::nullopt;
  const bool has_all = next_has_ && *next_has_ >= std::max(applied_at_view_, committed_alone_);
  if (!has_all && settings_.flaw != Flaw::kJoinsEarly) return std::nullopt;
  View next = view_;
  ++next.number;
  next.members.push_back(*next.joining);
  next.joining.reset();
  return next;
}

void Replica::request(Token token, const Request& request, std::span<std::byte> target) {
  if (!is_first() || request.view > view_.number) {
    replies_.push_back({token, elsewhere(request)});
    return;
  }
  if (request.op == Op::kStats || request.op == Op::kSave) {
    Answer answer;
    if (request.op == Op::kStats)
      answer.payload = encode(shard_.stats());
    else
      answer = save_piece(request);
    answer.id = request.id;
    answer.version = shard_.version();
    return answer_at(applied_, token, std::move(answer));
  }
  if (!is_command(request.op)) {
    waiting_.push_back({token, request, target, std::string(request.payload)});
    waiting_.back().pull.payload = waiting_.back().keys;
    return serve_waiting();
  }
  if (is_of_server(request.op)) {
    replies_.push_back({token, refused(request, "only a server gives this command")});
    return;
  }
  switch (shard_.turn(request)) {
    case Shard::Turn::kEarly: return;  // an earlier one got lost; the client sends both again
    case Shard::Turn::kRepeated: return answer_at(applied_, token, shard_.answered(request));
    case Shard::Turn::kNext: break;
  }
  if (request.op == Op::kPullDelta) {
    waiting_.push_back({token, request, {}, {}});
    waiting_.back().pull.payload = {};
    return serve_waiting();
  }
  Answer answer = submit(request);
  answer_at(applied_, token, std::move(answer));
  serve_waiting();
}

void Replica::forget(Token token) {
  std::erase_if(waiting_, [&](const Waiting& one) { return one.token == token; });
  std::erase_if(uncommitted_, [&](const auto& one) { return one.second.token == token; });
  std::erase_if(replies_, [&](const Reply& one) { return one.token == token; });
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
  if (next_) {
    log_.push_back({applied_, encode(applied)});
    if (next_has_) send(ChainMessage::Kind::kEntry, *next_, applied_, log_.back().bytes);
  }
  const bool is_alone = settings_.flaw == Flaw::kIgnoresJoining && next_ == view_.joining;
  if (!next_ || is_alone) commit(applied_);
  if (commits_alone()) commit(committed_alone_ = applied_);
  return answer;
}

// The only member does not wait while the state of the joining server is under way.
bool Replica::commits_alone() const {
  return is_first() && view_.members.size() == 1 && next_ && !next_has_;
}

void Replica::answer_at(std::uint64_t position, Token token, Answer answer) {
  if (committed_ >= position || settings_.flaw == Flaw::kAnswersEarly)
    replies_.push_back({token, std::move(answer)});
  else
    uncommitted_.emplace(position, Reply{token, std::move(answer)});
}

void Replica::commit(std::uint64_t position) {
  committed_ = std::max(committed_, position);
  const auto end = uncommitted_.upper_bound(committed_);
  for (auto one = uncommitted_.begin(); one != end; ++one)
    replies_.push_back(std::move(one->second));
  uncommitted_.erase(uncommitted_.begin(), end);
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
    if (pull.op == Op::kPull && shard_.marks() && pull.worker != kNoWorker) {
      Request mark = pull;
      mark.op = Op::kMark;
      submit(mark);
    }
  }
  answer_at(applied_, waiting.token, std::move(answer));
}

ChainMessage Replica::message_to(ChainMessage::Kind kind, const Member& to,
                                 std::uint64_t position) const {
  ChainMessage message;
  message.kind = kind;
  message.shard = settings_.shard;
  message.view = view_.number;
  message.from = me();
  message.to = to;
  message.position = position;
  message.committed = committed_;
  return message;
}

void Replica::send(ChainMessage::Kind kind, const Member& to, std::uint64_t position,
                   std::string_view payload) {
  ChainMessage message = message_to(kind, to, position);
  message.payload = payload;
  messages_.push_back({to.server, encode(message)});
}

void Replica::send_ack() {
  if (!previous_ || is_out_) return;
  ChainMessage message =
      message_to(ChainMessage::Kind::kAck, *previous_, has_state_ ? applied_ : kNothing);
  message.transfer = receives_;
  message.piece = received_;
  messages_.push_back({previous_->server, encode(message)});
}

// Sends what the next member lacks.
void Replica::send_missing() {
  silent_ticks_ = 0;
  if (next_needs_state_) return send_state();
  for (const Entry& entry : log_) {
    if (entry.position > *next_has_)
      send(ChainMessage::Kind::kEntry, *next_, entry.position, entry.bytes);
  }
}

void Replica::tick() {
  if (is_out_) return;
  send_ack();
  if (!next_) return;
  send(ChainMessage::Kind::kAlive, *next_, applied_);
  if (!next_has_ && !next_needs_state_) return;  // it has not told yet what it has
  if (next_has_ && *next_has_ >= applied_) return;
  if (++silent_ticks_ >= (next_needs_state_ ? kStateAgain : kCommandsAgain)) send_missing();
}

void Replica::receive(const ChainMessage& message) {
  if (is_out_ || !(message.to == me())) return;
  if (message.view != view_.number) return;
  if (message.kind == ChainMessage::Kind::kAck) {
    if (next_ && message.from == *next_) take_ack(message);
    return;
  }
  if (!previous_ || !(message.from == *previous_)) return;
  if (message.kind == ChainMessage::Kind::kEntry) take_entry(message);
  if (message.kind == ChainMessage::Kind::kState) take_state(message);
}

void Replica::take_entry(const ChainMessage& message) {
  if (!has_state_) return;
  if (message.position == applied_ + 1) submit(decode_request(message.payload));
  send_ack();
}

void Replica::take_ack(const ChainMessage& message) {
  if (message.position == kNothing) {
    if (!next_needs_state_) {
      next_needs_state_ = true;
      begin_state();
    } else if (message.transfer == state_transfer_ && message.piece == state_piece_ + 1) {
      send_next_piece();
    }
    return;
  }
  const bool is_first_word = !next_has_;
  const bool progress = is_first_word || message.position > *next_has_;
  next_needs_state_ = false;
  state_bytes_.clear();
  next_has_ = std::max(next_has_.value_or(0), message.position);
  if (progress) silent_ticks_ = 0;
  if (is_first_word) send_missing();
  const std::uint64_t before = committed_;
  commit(message.committed);
  // What is not committed is kept: if the next member is lost, the one after it may lack it.
  const std::uint64_t settled = std::min(*next_has_, committed_);
  while (!log_.empty() && log_.front().position <= settled) log_.pop_front();
  if (committed_ != before) send_ack();
}

std::string Replica::describe() const {
  std::string text = "server " + std::to_string(me().server) + ": view " +
                     std::to_string(view_.number) + (is_out_ ? ", out" : "") +
                     (has_state_ ? "" : ", no state") + ", applied " + std::to_string(applied_) +
                     ", committed " + std::to_string(committed_) + ", log " +
                     std::to_string(log_.size());
  if (previous_) text += ", after server " + std::to_string(previous_->server);
  if (next_)
    text += ", before server " + std::to_string(next_->server) + ", which has " +
            (next_has_ ? std::to_string(*next_has_) : "told nothing");
  return text + (next_needs_state_ ? " and needs the state" : "");
}

}  // namespace weft::ps::internal

#include "weft/store/internal/client_requests.h"

#include <algorithm>

namespace weft::store::internal {
namespace {

// A request without an answer for this long is sent again: its message may be lost.
constexpr Time kSendAgain = std::chrono::milliseconds(500);

}  // namespace

void ClientRequests::add(Token token, const Request& asked, const KeyValues& state, Time now) {
  forget(token);
  Pending& pending = pending_[token];
  pending.request = asked;
  pending.deadline = now + std::chrono::milliseconds(asked.wait_ms);
  if (is_write(asked.op)) {
    if (const auto old = writers_.find(asked.client); old != writers_.end()) forget(old->second);
    writers_[asked.client] = token;
    if (auto known = state.answered(asked.client, asked.sequence)) answer(token, std::move(*known));
  } else if (asked.op != Op::kWait || state.changed_since(asked.key, asked.revision)) {
    pending.request.op = asked.op == Op::kGet ? Op::kGet : Op::kList;
    reads_.push_back({token, asked.sequence});
  }
}

void ClientRequests::forget(Token token) {
  const auto pending = pending_.find(token);
  if (pending == pending_.end()) return;
  const Request& request = pending->second.request;
  if (const auto writer = writers_.find(request.client);
      is_write(request.op) && writer != writers_.end() && writer->second == token)
    writers_.erase(writer);
  pending_.erase(pending);
}

void ClientRequests::answer_now(Token token, Response response) {
  answers_.push_back({token, std::move(response)});
}

void ClientRequests::answer(Token token, Response response) {
  const auto pending = pending_.find(token);
  if (pending == pending_.end()) return;
  response.sequence = pending->second.request.sequence;
  forget(token);
  answer_now(token, std::move(response));
}

// ---- changes

std::optional<std::string> ClientRequests::submit(Token token, Leadership leadership, Time now) {
  const auto found = pending_.find(token);
  if (found == pending_.end() || !is_write(found->second.request.op)) return std::nullopt;
  Pending& pending = found->second;
  pending.leadership = leadership;
  pending.submitted = now;
  std::string command = encode(pending.request);
  if (pending.request.op == Op::kEndSession) forget(token);
  return command;
}

std::vector<ClientRequests::Token> ClientRequests::overdue(Leadership leadership, Time now) {
  const auto is_old = [&](Leadership sent_to, Time sent) {
    return sent_to != leadership || now - sent >= kSendAgain;
  };
  std::vector<Token> changes;
  for (const auto& [token, pending] : pending_) {
    if (is_write(pending.request.op) && is_old(pending.leadership, pending.submitted))
      changes.push_back(token);
  }
  std::erase_if(batches_, [&](const auto& one) {
    const Batch& batch = one.second;
    const bool again = !batch.index && is_old(batch.leadership, batch.asked);
    if (again) ask_again(batch);
    return again;
  });
  return changes;
}

void ClientRequests::ask_again(const Batch& batch) {
  reads_.insert(reads_.end(), batch.reads.begin(), batch.reads.end());
}

void ClientRequests::applied(const Request& command, const Response& response) {
  const auto writer = writers_.find(command.client);
  if (writer == writers_.end()) return;
  const auto pending = pending_.find(writer->second);
  if (pending->second.request.sequence == command.sequence) answer(writer->second, response);
}

void ClientRequests::answer_known(const KeyValues& state) {
  std::vector<Answer> known;
  for (const auto& [token, pending] : pending_) {
    if (!is_write(pending.request.op)) continue;
    if (auto response = state.answered(pending.request.client, pending.request.sequence))
      known.push_back({token, std::move(*response)});
  }
  for (Answer& one : known) answer(one.token, std::move(one.response));
}

// ---- reads

std::optional<std::uint64_t> ClientRequests::begin_reads(Leadership leadership, Time now) {
  if (reads_.empty()) return std::nullopt;
  batches_[++last_round_] = {std::exchange(reads_, {}), now, leadership, std::nullopt};
  return last_round_;
}

void ClientRequests::set_index(std::uint64_t round, Index index) {
  if (const auto batch = batches_.find(round); batch != batches_.end()) batch->second.index = index;
}

void ClientRequests::end_reads(const KeyValues& state, Index applied) {
  std::erase_if(batches_, [&](const auto& one) {
    const Batch& batch = one.second;
    if (!batch.index || *batch.index > applied) return false;
    for (const Read& read : batch.reads) {
      const auto pending = pending_.find(read.token);
      if (pending != pending_.end() && pending->second.request.sequence == read.sequence)
        answer(read.token, state.read(pending->second.request));
    }
    return true;
  });
}

void ClientRequests::wake_waits(const KeyValues& state) {
  if (woken_ == state.revision()) return;
  for (auto& [token, pending] : pending_) {
    Request& request = pending.request;
    if (request.op != Op::kWait ||
        !state.changed_since(request.key, std::max(request.revision, woken_)))
      continue;
    request.op = Op::kList;
    reads_.push_back({token, request.sequence});
  }
  woken_ = state.revision();
}

// ---- time

Time ClientRequests::next() const {
  Time first = Time::max();
  for (const auto& [token, pending] : pending_) first = std::min(first, pending.deadline);
  return first;
}

void ClientRequests::expire(Time now, const std::string& reason) {
  std::vector<Token> late;
  for (const auto& [token, pending] : pending_) {
    if (pending.deadline <= now) late.push_back(token);
  }
  for (const Token token : late) answer(token, {.status = Status::kTimeout, .text = reason});
}

void ClientRequests::start_over() {
  for (const auto& [round, batch] : batches_) ask_again(batch);
  batches_.clear();
  for (auto& [token, pending] : pending_) pending.leadership = 0;
  woken_ = 0;
}

}  // namespace weft::store::internal

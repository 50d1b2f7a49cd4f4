// Every member applies the same commands in the same order, and must get the same state, answers
// included. So nothing here depends on a clock, a random number or an address. Time enters only as
// a command: the leader measures leases and orders kExpire.
//
// Exactly once: a client that gets no answer sends its command again, so the log may contain it
// twice. A session keeps the number and the answer of the client's last command:
//
//   number in the log   larger: new     executed, and the answer kept
//                       equal: repeated the kept answer, nothing changes
//                       smaller: late   no answer: the client has sent a later command since
//
// This needs clients that have one command pending at a time (ClientRequests). Sessions that are
// too many are forgotten by the number of commands since their last one, which is the same on all
// members. A command of a forgotten session that is repeated is executed again.
//
// kExpire against kKeepAlive: the leader decides at one moment, and its command is applied at a
// later one. It carries the count of renewals that the leader saw. If a renewal came in between, it
// does nothing.
//
// A change has one revision, also if it removes several keys (the end of a lease). Not locked: the
// Node owns it.
#include "weft/store/internal/key_values.h"

#include "weft/store/internal/decimal_sum.h"

namespace weft::store::internal {
namespace {

Response invalid(std::string text) { return {.status = Status::kInvalid, .text = std::move(text)}; }

Response no_such_lease(LeaseId lease) {
  return invalid("lease " + std::to_string(lease) + " does not exist or has ended");
}

}  // namespace

std::optional<Response> KeyValues::apply(const Request& command) {
  ++commands_;
  if (command.client == 0) return execute(command);  // of the leader
  if (const auto session = sessions_.find(command.client);
      session != sessions_.end() && command.sequence <= session->second.sequence && deduplicates_)
    return answered(command.client, command.sequence);
  // The number of an ended session stays, since copies of its requests may still be in the log.
  Response response = command.op == Op::kEndSession ? Response() : execute(command);
  response.sequence = command.sequence;
  remember(command, response);
  return response;
}

std::optional<Response> KeyValues::answered(std::uint64_t client, std::uint64_t sequence) const {
  const auto session = sessions_.find(client);
  if (session == sessions_.end() || session->second.sequence != sequence) return std::nullopt;
  return session->second.response;
}

void KeyValues::remember(const Request& command, const Response& response) {
  Session& session = sessions_[command.client];
  if (session.used != 0) sessions_by_use_.erase(session.used);
  answer_bytes_ -= session.bytes();
  session = {command.sequence, commands_, response};
  answer_bytes_ += session.bytes();
  sessions_by_use_.emplace(commands_, command.client);
  while (sessions_.size() > kMaxSessions || answer_bytes_ > kMaxAnswerBytes)
    forget_oldest_session();
}

void KeyValues::forget_oldest_session() {
  const auto session = sessions_.find(sessions_by_use_.begin()->second);
  answer_bytes_ -= session->second.bytes();
  sessions_.erase(session);
  sessions_by_use_.erase(sessions_by_use_.begin());
}

Response KeyValues::execute(const Request& command) {
  switch (command.op) {
    case Op::kSet: return set(command);
    case Op::kCompareAndSet: return compare_and_set(command);
    case Op::kAdd: return add(command);
    case Op::kAppend: return append(command);
    case Op::kErase: return erase(command);
    case Op::kGrant: return grant(command);
    case Op::kKeepAlive: return keep_alive(command);
    case Op::kRevoke:
    case Op::kExpire: return end_lease(command);
    default: return invalid("this request does not change the store");
  }
}

Response KeyValues::set(const Request& command) {
  return write(command.key, command.value, command.lease);
}

Response KeyValues::compare_and_set(const Request& command) {
  const auto entry = entries_.find(command.key);
  const Revision there = entry == entries_.end() ? 0 : entry->second.revision;
  if (there == command.revision) return write(command.key, command.value, command.lease);
  Response response{.status = Status::kNotDone, .revision = revision_};
  if (entry != entries_.end()) response.value = Value{entry->second.bytes, there};
  return response;
}

Response KeyValues::add(const Request& command) {
  const auto entry = entries_.find(command.key);
  const bool exists = entry != entries_.end();
  const DecimalSum sum =
      decimal_sum(command.key, exists ? entry->second.bytes : "", command.number);
  if (!sum.refusal.empty()) return invalid(sum.refusal);
  Response response =
      write(command.key, std::to_string(sum.value), exists ? entry->second.lease : 0);
  if (response.status == Status::kDone) response.number = sum.value;
  return response;
}

Response KeyValues::append(const Request& command) {
  const auto entry = entries_.find(command.key);
  const bool exists = entry != entries_.end();
  std::string bytes = exists ? entry->second.bytes : "";
  if (bytes.size() + command.value.size() > kMaxValueBytes)
    return invalid("append: the value of " + command.key.substr(0, 200) + " would exceed " +
                   std::to_string(kMaxValueBytes) + " bytes");
  return write(command.key, std::move(bytes) + command.value, exists ? entry->second.lease : 0);
}

Response KeyValues::erase(const Request& command) {
  const auto entry = entries_.find(command.key);
  if (entry == entries_.end()) return {.status = Status::kNotDone, .revision = revision_};
  ++revision_;
  remove(entry);
  return {.revision = revision_};
}

Response KeyValues::grant(const Request& command) {
  leases_.emplace(++last_lease_, Lease{std::chrono::milliseconds(command.number)});
  return {.revision = revision_, .number = static_cast<std::int64_t>(last_lease_)};
}

Response KeyValues::keep_alive(const Request& command) {
  const auto lease = leases_.find(command.lease);
  if (lease == leases_.end()) return {.status = Status::kNotDone, .revision = revision_};
  ++lease->second.renewals;
  return {.revision = revision_};
}

// The leader's kExpire has no effect if the lease was kept alive after the leader decided.
Response KeyValues::end_lease(const Request& command) {
  const auto lease = leases_.find(command.lease);
  if (lease == leases_.end() ||
      (command.op == Op::kExpire && lease->second.renewals != command.revision))
    return {.status = Status::kNotDone, .revision = revision_};
  const std::set<std::string> keys = std::move(lease->second.keys);
  leases_.erase(lease);
  if (!keys.empty()) ++revision_;
  // All under one revision, so that a request that waits for a change sees them together.
  for (const std::string& key : keys) remove(entries_.find(key));
  return {.revision = revision_};
}

bool KeyValues::has_room(const std::string& key, std::size_t bytes) const {
  const auto entry = entries_.find(key);
  const std::size_t before = entry == entries_.end() ? 0 : size_of(key, entry->second.bytes.size());
  return bytes_ - before + size_of(key, bytes) <= kMaxStoreBytes;
}

Response KeyValues::write(const std::string& key, std::string bytes, LeaseId lease) {
  const auto holder = leases_.find(lease);
  if (lease != 0 && holder == leases_.end()) return no_such_lease(lease);
  if (!has_room(key, bytes.size()))
    return {.status = Status::kFull,
            .text = "the store is full: its keys and values may have " +
                    std::to_string(kMaxStoreBytes) + " bytes"};
  // The key leaves its former lease, also if the new value has none.
  if (const auto old = entries_.find(key); old != entries_.end()) {
    bytes_ -= size_of(key, old->second.bytes.size());
    if (old->second.lease != 0) leases_.at(old->second.lease).keys.erase(key);
  }
  bytes_ += size_of(key, bytes.size());
  if (lease != 0) holder->second.keys.insert(key);
  entries_[key] = {std::move(bytes), ++revision_, lease};
  changes_.add(revision_, key);
  return {.revision = revision_};
}

// Of the revision that the caller has begun.
void KeyValues::remove(Entries::iterator entry) {
  const std::string key = entry->first;
  bytes_ -= size_of(key, entry->second.bytes.size());
  if (const auto lease = leases_.find(entry->second.lease); lease != leases_.end())
    lease->second.keys.erase(key);
  entries_.erase(entry);
  changes_.add(revision_, key);
}

Item KeyValues::item_of(const Entries::value_type& entry) const {
  return {entry.first, {entry.second.bytes, entry.second.revision}};
}

Response KeyValues::read(const Request& request) const {
  Response response{.sequence = request.sequence, .revision = revision_};
  if (request.op == Op::kGet) {
    const auto entry = entries_.find(request.key);
    if (entry == entries_.end()) {
      response.status = Status::kNotDone;
    } else {
      response.value = item_of(*entry).value;
    }
    return response;
  }
  for (auto entry = entries_.lower_bound(request.key);
       entry != entries_.end() && begins_with(entry->first, request.key); ++entry)
    response.items.push_back(item_of(*entry));
  return response;
}

}  // namespace weft::store::internal

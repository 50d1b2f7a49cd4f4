// The state that the log replicates: keys, leases and the sessions of clients. Deterministic: the
// same commands in the same order give the same state on every member.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "weft/store/internal/changes.h"
#include "weft/store/request.h"

namespace weft::store::internal {

class KeyValues {
 public:
  // `deduplicates` false: a flaw, for tests of the tests.
  explicit KeyValues(bool deduplicates = true) : deduplicates_(deduplicates) {}

  // Applies a command, and gives the answer for its client. A command of a session that was applied
  // before changes nothing and gives the first answer again. None for a command that is older than
  // the session's last one: its client no longer waits.
  std::optional<Response> apply(const Request& command);
  // The answer to the session's command if it was applied and no later one was.
  std::optional<Response> answered(std::uint64_t client, std::uint64_t sequence) const;

  // kGet and kList.
  Response read(const Request& request) const;
  // True if a key with this prefix has changed after `since`, or if it is unknown.
  bool changed_since(const std::string& prefix, Revision since) const {
    return changes_.any_since(prefix, since);
  }
  Revision revision() const { return revision_; }

  struct Lease {
    std::chrono::milliseconds ttl;
    std::uint64_t renewals = 0;
    std::set<std::string> keys = {};
  };
  const std::map<LeaseId, Lease>& leases() const { return leases_; }

  std::string snapshot() const;
  // Replaces the state. Throws Error(kCorrupt) for bytes that snapshot() does not make.
  void restore(std::string_view snapshot);

  // Limits of the sessions that are kept: their number, and the bytes of values in their answers.
  // The session that has been silent for most commands is forgotten first.
  static constexpr std::size_t kMaxSessions = 65'536;
  static constexpr std::size_t kMaxAnswerBytes = kMaxStoreBytes;

 private:
  struct Entry {
    std::string bytes;
    Revision revision = 0;
    LeaseId lease = 0;
  };
  struct Session {
    std::uint64_t sequence = 0;
    std::uint64_t used = 0;  // number of its last command
    Response response;
    std::size_t bytes() const { return response.value ? response.value->bytes.size() : 0; }
  };
  using Entries = std::map<std::string, Entry>;

  Response execute(const Request& command);
  Response set(const Request& command);
  Response compare_and_set(const Request& command);
  Response add(const Request& command);
  Response append(const Request& command);
  Response erase(const Request& command);
  Response grant(const Request& command);
  Response keep_alive(const Request& command);
  Response end_lease(const Request& command);
  Response write(const std::string& key, std::string bytes, LeaseId lease);
  void remove(Entries::iterator entry);
  void remember(const Request& command, const Response& response);
  void forget_oldest_session();
  // Of a key and its value, as kMaxStoreBytes counts them.
  static std::size_t size_of(const std::string& key, std::size_t value) {
    constexpr std::size_t kForEachKey = 64;
    return kForEachKey + key.size() + value;
  }
  bool has_room(const std::string& key, std::size_t bytes) const;
  Item item_of(const Entries::value_type& entry) const;

  bool deduplicates_;
  Entries entries_;
  std::size_t bytes_ = 0;  // as kMaxStoreBytes counts them
  std::map<LeaseId, Lease> leases_;
  std::map<std::uint64_t, Session> sessions_;
  std::map<std::uint64_t, std::uint64_t> sessions_by_use_;  // used -> client
  std::size_t answer_bytes_ = 0;
  Revision revision_ = 0;
  LeaseId last_lease_ = 0;
  std::uint64_t commands_ = 0;

  Changes changes_;  // for changed_since(); not a part of the state
};

}  // namespace weft::store::internal

// Key-value store of a job: small values that all processes of the job read, change and wait for.
//
// Implementations: store::Client asks the store process of its node, which replicates the data over
// all nodes (server.h) or keeps it in etcd (etcd/etcd.h).
//
// All calls are linearizable: each takes effect at one instant between its start and its return. A
// call whose answer is lost is repeated by the implementation and takes effect once.
//
// Errors: kInvalidArgument for a call that breaks a limit below or names a lease that does not
// exist; kTimeout at the deadline, with the reason; kUnavailable if no store process can be
// reached. After kTimeout and kUnavailable, a change may or may not have taken effect. FullStore
// (kUnavailable) if there is no room for a change, which then has no effect.
// Any thread may call any method.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/deadline.h"
#include "weft/base/error.h"

namespace weft::store {

// Number of a change of the store. Each change has a higher one than all changes before it.
using Revision = std::uint64_t;
// 0: no lease.
using LeaseId = std::uint64_t;

inline constexpr std::size_t kMaxKeyBytes = 4096;
inline constexpr std::size_t kMaxValueBytes = std::size_t{8} << 20;
// Keys and values of the whole store, and 64 bytes for each key.
inline constexpr std::size_t kMaxStoreBytes = std::size_t{64} << 20;
inline constexpr std::chrono::milliseconds kMinLease{100};
inline constexpr std::chrono::milliseconds kMaxLease = std::chrono::hours(24);

struct Value {
  std::string bytes;
  Revision revision = 0;  // of the key's last change
  bool operator==(const Value&) const = default;
};

struct Item {
  std::string key;
  Value value;
  bool operator==(const Item&) const = default;
};

struct Listing {
  std::vector<Item> items;  // by key, in the order of bytes
  Revision revision = 0;    // of the store when it was read
};

// A key with its new value. The key is erased when `lease` ends; 0: it stays.
struct Write {
  std::string key;
  std::string value;
  LeaseId lease = 0;
};

struct Swap {
  bool done = false;
  std::optional<Value> value;  // of the key after the call; none if the key does not exist
};

// Thrown for a change beyond kMaxStoreBytes.
class FullStore : public Error {
 public:
  explicit FullStore(const std::string& message)
      : Error(Errc::kUnavailable, message, {"store", -1, -1}) {}
};

class Store {
 public:
  virtual ~Store() = default;

  // None if the key does not exist.
  virtual std::optional<Value> get(const std::string& key, Deadline deadline) = 0;
  // Returns the revision of the change.
  virtual Revision set(const Write& write, Deadline deadline) = 0;
  // Writes if the key's revision is `expected`; 0: if the key does not exist.
  virtual Swap compare_and_set(const Write& write, Revision expected, Deadline deadline) = 0;
  // Adds to a number, which is stored as decimal text; a key that does not exist counts as 0.
  // Returns the sum. Throws kInvalidArgument if the value is not a number or the sum overflows.
  // The key keeps its lease.
  virtual std::int64_t add(const std::string& key, std::int64_t delta, Deadline deadline) = 0;
  // Appends to the value; a key that does not exist counts as empty. The key keeps its lease.
  virtual Revision append(const std::string& key, const std::string& bytes, Deadline deadline) = 0;
  // Returns false if the key does not exist.
  virtual bool erase(const std::string& key, Deadline deadline) = 0;

  // All keys that begin with `prefix`. An empty prefix lists the whole store.
  virtual Listing list(const std::string& prefix, Deadline deadline) = 0;
  // Waits until a key with this prefix has been written or erased after the revision `since`, and
  // returns what list() returns then. None if there is none until the deadline, or until 100 ms
  // before it. May return without such a change if `since` is thousands of changes old.
  virtual std::optional<Listing> wait(const std::string& prefix, Revision since,
                                      Deadline deadline) = 0;

  // A lease ends `ttl` after the last grant() or keep_alive(), and takes its keys with it. It ends
  // later if the store is without a leader in the meantime. server.h states by how much it can end
  // too early.
  virtual LeaseId grant(std::chrono::milliseconds ttl, Deadline deadline) = 0;
  // Starts the lease's time again. Returns false if it has ended.
  virtual bool keep_alive(LeaseId lease, Deadline deadline) = 0;
  // Ends the lease now. Returns false if it had ended.
  virtual bool revoke(LeaseId lease, Deadline deadline) = 0;
};

}  // namespace weft::store

// For tests: clients of a simulated store.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "weft/store/testing/history.h"
#include "weft/store/testing/simulated_cluster.h"

namespace weft::store {

// Calls one operation after the other, through the store process of its node, until `stop`.
class SimulatedClient {
 public:
  enum class Role { kCaller, kReader, kWaiter, kHolder };

  SimulatedClient(SimulatedCluster& cluster, History& history, std::uint32_t node, Role role)
      : cluster_(cluster),
        history_(history),
        node_(node),
        life_(cluster.lives(node)),
        role_(role),
        random_(cluster.random().next_u64(), 2),
        client_(cluster.random().next_u64() | 1) {}

  void begin(SimulatedCluster::Time stop) {
    stop_ = stop;
    next();
  }
  // True if a call has not ended, although its client has not ended with its host.
  bool hangs() const { return waits_ && cluster_.lives(node_) == life_; }

 private:
  using Op = internal::Op;
  using Request = internal::Request;
  using Response = internal::Response;
  using Status = internal::Status;

  void next() {
    cluster_.after(std::chrono::microseconds(100 + random_.below(60'000)), [this] {
      if (cluster_.now() >= stop_ || cluster_.lives(node_) != life_) return;
      if (role_ == Role::kReader) return get("r" + std::to_string(random_.below(2)));
      if (role_ == Role::kWaiter) return watch();
      if (role_ == Role::kHolder) return hold();
      random_.below(8) == 0 ? read_lease() : operate();
    });
  }

  void call(Request request, std::function<void(const Response&)> answered) {
    request.client = client_;
    request.sequence = ++sequence_;
    if (request.wait_ms == 0)
      request.wait_ms = 2000 + static_cast<std::uint32_t>(random_.below(4000));
    const std::int64_t begin = cluster_.now().count();
    const bool changes = request.op >= Op::kSet && request.op <= Op::kErase;
    const bool may_fail = request.lease != 0;  // which may have ended
    waits_ = true;
    cluster_.call(
        node_, request,
        [this, may_fail, begin, changes, answered = std::move(answered)](const Response& response) {
          waits_ = false;
          ++history_.answered;
          if (response.status == Status::kInvalid && !may_fail) throw Violation(response.text);
          if (response.status != Status::kTimeout && response.revision != 0)
            history_.seen.push_back({begin, cluster_.now().count(), response.revision,
                                     changes && response.status == Status::kDone});
          answered(response);
          next();
        });
  }

  std::size_t record(const std::string& key, Operation operation) {
    operation.begin = cluster_.now().count();
    auto& all = history_.operations[key];
    all.push_back(std::move(operation));
    return all.size() - 1;
  }

  // An operation on one of the keys, drawn at random.
  void operate() {
    const std::uint64_t kind = random_.below(10);
    if (kind < 2) return change("counter", {.kind = Operation::Kind::kAdd, .argument = "1"});
    if (kind < 3) return change("list", {.kind = Operation::Kind::kAppend, .argument = fresh()});
    const std::string key = "r" + std::to_string(random_.below(2));
    if (kind < 5) return change(key, {.kind = Operation::Kind::kSet, .argument = fresh()});
    if (kind < 6) return change(key, {.kind = Operation::Kind::kErase});
    if (kind < 8 && known_.contains(key))
      return change(
          key, {.kind = Operation::Kind::kSwap,
                .argument = fresh(),
                .expected = known_[key] ? Operation::Content(known_[key]->bytes) : std::nullopt});
    get(kind == 9 ? "counter" : key);
  }

  std::string fresh() {
    return "<" + std::to_string(client_) + "." + std::to_string(sequence_ + 1) + ">";
  }

  void change(const std::string& key, Operation operation) {
    static constexpr Op kOps[] = {Op::kGet, Op::kSet,    Op::kCompareAndSet,
                                  Op::kAdd, Op::kAppend, Op::kErase};
    const auto kind = operation.kind;
    Request request{.op = kOps[static_cast<int>(kind)], .key = key, .value = operation.argument};
    if (kind == Operation::Kind::kAdd) request.number = 1;
    if (kind == Operation::Kind::kSwap) request.revision = known_[key] ? known_[key]->revision : 0;
    const std::size_t at = record(key, std::move(operation));
    call(std::move(request), [this, key, at](const Response& response) {
      Operation& one = history_.operations[key][at];
      if (response.status == Status::kTimeout) return;  // it may have taken effect
      one.end = cluster_.now().count();
      one.done = response.status == Status::kDone;
      if (one.kind == Operation::Kind::kAdd) one.found = std::to_string(response.number);
      if (one.kind == Operation::Kind::kSwap && response.value) one.found = response.value->bytes;
    });
  }

  void get(const std::string& key) {
    const bool lists = random_.below(3) == 0;
    const std::int64_t begin = cluster_.now().count();
    call({.op = lists ? Op::kList : Op::kGet, .key = key}, [=, this](const Response& response) {
      if (response.status != Status::kTimeout) found(key, begin, response);
    });
  }

  void found(const std::string& key, std::int64_t begin, const Response& response) {
    std::optional<Value> value = response.value;
    for (const Item& item : response.items) {
      if (item.key == key) value = item.value;
    }
    known_[key] = value;
    Operation one{.kind = Operation::Kind::kGet, .begin = begin, .end = cluster_.now().count()};
    if (value) one.found = value->bytes;
    history_.operations[key].push_back(std::move(one));
  }

  // Waits for changes of a key.
  void watch() {
    const std::int64_t begin = cluster_.now().count();
    Request request{.op = Op::kWait, .key = "r0", .revision = watched_, .wait_ms = 2500};
    call(std::move(request), [this, begin](const Response& response) {
      if (response.status != Status::kDone) {
        history_.timed_out.push_back({"r0", begin, cluster_.now().count()});
        return;
      }
      if (response.revision <= watched_) throw Violation("a wait ended without a change ");
      ++history_.woken;
      watched_ = response.revision;
      found("r0", begin, response);
    });
  }

  // Takes a lease, sets a key with it, keeps it alive for some time.
  void hold() {
    if (lease_ == 0) {
      const auto ttl = 400 + static_cast<std::int64_t>(random_.below(1500));
      const std::int64_t begin = cluster_.now().count();
      return call({.op = Op::kGrant, .number = ttl}, [=, this](const Response& response) {
        if (response.status != Status::kDone) return;
        lease_ = static_cast<LeaseId>(response.number);
        place_ = history_.leases.size();
        history_.leases.push_back({.key = "lease/" + std::to_string(lease_),
                                   .ttl = std::chrono::milliseconds(ttl),
                                   .renewed = begin});
      });
    }
    const std::string key = history_.leases[place_].key;
    if (history_.leases[place_].bound == INT64_MAX) return bind(key);
    const std::int64_t begin = cluster_.now().count();
    call({.op = Op::kKeepAlive, .lease = lease_}, [this, begin](const Response& response) {
      if (response.status == Status::kDone) history_.leases[place_].renewed = begin;
      if (response.status == Status::kNotDone) lease_ = 0;  // it has ended: take another one
    });
  }

  // Sets the key of the lease. The end of the lease will erase it once.
  void bind(const std::string& key) {
    const std::size_t set = record(key, {.kind = Operation::Kind::kSet, .argument = "held"});
    record(key, {.kind = Operation::Kind::kErase});
    call({.op = Op::kSet, .key = key, .value = "held", .lease = lease_},
         [this, key, set](const Response& response) {
           if (response.status == Status::kDone) {
             history_.leases[place_].bound = cluster_.now().count();
             history_.operations[key][set].end = cluster_.now().count();
           } else {
             lease_ = 0;
           }
         });
  }

  void read_lease() {
    if (history_.leases.empty()) return operate();
    const std::string key = history_.leases[random_.below(history_.leases.size())].key;
    const std::int64_t begin = cluster_.now().count();
    call({.op = Op::kGet, .key = key}, [=, this](const Response& response) {
      if (response.status == Status::kTimeout) return;
      Operation one{.kind = Operation::Kind::kGet, .begin = begin, .end = cluster_.now().count()};
      if (response.value) one.found = response.value->bytes;
      history_.operations[key].push_back(std::move(one));
    });
  }

  SimulatedCluster& cluster_;
  History& history_;
  const std::uint32_t node_;
  const std::uint64_t life_;
  const Role role_;
  Random random_;
  const std::uint64_t client_;
  std::uint64_t sequence_ = 0;
  SimulatedCluster::Time stop_{};
  std::map<std::string, std::optional<Value>> known_;  // keys as last read
  Revision watched_ = 0;
  LeaseId lease_ = 0;
  std::size_t place_ = 0;
  bool waits_ = false;
};

}  // namespace weft::store

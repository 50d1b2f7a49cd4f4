// The workers of a shard: the client of each, its steps, and whether the others wait for it.
//
// A worker that counts belongs to the client that joined last. One that has left keeps its number
// and its clock, and no values. For one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "weft/ps/internal/request.h"
#include "weft/ps/internal/state_bytes.h"

namespace weft::ps::internal {

class Workers {
 public:
  // The refusal of a worker that does not count, or that belongs to another client; kDone if it may
  // give commands.
  Answer check(const Request& request) const;
  bool counts(std::uint32_t number, std::uint64_t client) const;
  // Those that count, with their clients.
  std::map<std::uint32_t, std::uint64_t> counting() const;
  bool is_empty() const { return workers_.empty(); }  // nobody has ever joined

  // Steps of a worker; 0 if it is unknown.
  std::int64_t clock(std::uint32_t number) const;
  // Steps of the slowest one that counts, without this one.
  std::optional<std::int64_t> slowest(std::uint32_t without = kNoWorker) const;
  // The step at which a worker joins: that of the slowest other one, so that a worker that was
  // started again does not hold itself up. Without others, the last step that was reached.
  std::int64_t clock_to_join(std::uint32_t number) const {
    return slowest(number).value_or(std::max(last_clock_, clock(number)));
  }
  // True if the worker is at most `staleness` steps ahead of the slowest. Clients that are not
  // workers never wait.
  bool may_pull(const Request& pull, std::int64_t staleness) const;
  // Values that the worker has from its last pull, for delay compensation and differences.
  std::span<float> pulled(std::uint32_t number);
  // By piece: how often its difference went through the codec.
  std::vector<std::uint32_t>& encoded(std::uint32_t number) { return workers_.at(number).encoded; }
  // Bytes of all these values.
  std::uint64_t bytes() const;

  // `pulled`: the values that it has now; empty: they are not kept.
  void join(const Request& command, std::int64_t clock, std::vector<float> pulled);
  // Does nothing and returns false if it does not count, or has joined again from another process.
  bool leave(std::uint32_t number, std::uint64_t client);
  // After a push. Returns its steps.
  std::int64_t advance(std::uint32_t number) { return ++workers_.at(number).clock; }

  void put(ByteWriter& out) const;
  static Workers taken(ByteReader& in);
  // The clock of those that left is apart in the format.
  void put_last_clock(ByteWriter& out) const { out.put(last_clock_); }
  void take_last_clock(ByteReader& in) { last_clock_ = in.take<std::int64_t>(); }
  // True if no worker has another number of values than these. `kept`: those that count have them.
  bool fits(std::size_t values, bool kept) const;

 private:
  struct Worker {
    std::uint64_t client = 0;
    std::int64_t clock = 0;  // pushes
    bool counts = false;
    std::vector<float> pulled;
    std::vector<std::uint32_t> encoded;  // empty: all 0
  };
  std::map<std::uint32_t, Worker> workers_;
  std::int64_t last_clock_ = 0;  // at which a worker joins if no other one counts
};

}  // namespace weft::ps::internal

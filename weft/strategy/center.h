// Center: a vector that workers share and change, each at its own time. The rules downpour and
// easgd_async work on it.
//
//   worker 0   step step  add pull  step step  add pull …
//   worker 1   step      step      add pull      step …        nobody meets
//                          │   ▲
//                          ▼   │
//                        center, with clocks
//
// shared_center() keeps it in the memory of a host. On several hosts it is on parameter servers
// (server/server_center.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "weft/comm/group.h"

namespace weft::strategy {

// One worker's view. One thread at a time calls it. Calls throw as Group's operations do: kPeerLost
// for a lost worker or server, kTimeout.
class Center {
 public:
  // Halves of an exchange. Each worker has a clock for each: the number of the last exchange of
  // which this half is done.
  enum class Clock : std::uint8_t { kAdded, kPulled };

  virtual ~Center() = default;
  Center(const Center&) = delete;
  Center& operator=(const Center&) = delete;

  // Number of elements.
  virtual std::int64_t count() const = 0;
  // Codec through which pull() and add() go, as in compress/spec.h.
  virtual std::string codec() const { return "none"; }
  // Copies elements [offset, offset + n) into `out` [n], which has the center's element type.
  virtual void pull(std::int64_t offset, const at::Tensor& out) = 0;
  // Adds `change` [n] to elements [offset, offset + n). No addition is lost, and none is applied
  // twice.
  virtual void add(std::int64_t offset, const at::Tensor& change) = 0;

  // Sets a clock of this worker, after that half of an exchange. Numbers never fall.
  virtual void advance(Clock clock, std::int64_t exchange) = 0;
  // How often all workers have advanced kAdded since reset(): at least what they had when the call
  // began.
  virtual std::int64_t additions() const = 0;
  // Waits until a clock of every worker that takes part is at least `least` (stale synchronous
  // parallel: Ho and others 2013).
  virtual void wait_for_all(Clock clock, std::int64_t least) = 0;
  // Waits until no worker that takes part is between the halves of an exchange up to number `last`.
  virtual void wait_for_exchanges(std::int64_t last) = 0;
  // From now on, the others do not wait for this worker, until the next reset().
  virtual void leave() = 0;
  // All workers take part, with clocks at 0. With `values` [count], sets the vector to those of
  // worker 0. Collective.
  virtual void reset(const at::Tensor* values) = 0;
  // Copies all elements into `out` [count], without a codec.
  virtual void read(const at::Tensor& out) { pull(0, out); }
  // A copy of the vector while nobody changes it, without a codec. Collective.
  virtual at::Tensor snapshot() = 0;
  // The vector in place, where this worker can address it; else undefined. Use it while nobody
  // exchanges.
  virtual at::Tensor in_place() = 0;

 protected:
  Center() = default;
};

// Makes the center of `workers` for vectors like `like` [count]. Collective.
using MakeCenter =
    std::function<std::unique_ptr<Center>(const Group& workers, const at::Tensor& like)>;

// A center of zeros in the memory of a host. A worker holds the lock of one chunk at a time, and
// workers begin at different chunks. Throws Error(kBadConfig) if the workers are not on one host.
std::unique_ptr<Center> shared_center(const Group& workers, const at::Tensor& like);

struct ServerCenterOptions {
  // Where servers of workers listen: an address, a network or the name of an interface, as in
  // net/tcp/tcp.h.
  std::string interface = "127.0.0.1";
  // Codec of what workers add and of what they pull (compress/spec.h). What it leaves out of an
  // addition comes with later ones. Pulls have the encoded difference to what the worker has, for
  // which servers keep a copy of the vector for each worker. Strategy::codec must be the same.
  std::string codec = "none";
  // All ranks of the job, if they are several groups of workers with a center each: those of other
  // parts of the model. Servers of the job keep all these centers. Empty: the workers.
  std::optional<Group> all;
};

// The parameter server as strategies use it (strategy/server). A build of weft may have none.
struct ServerComponent {
  // True if the job has servers (weft run --servers).
  bool (*job_has_servers)();
  // server_center().
  std::unique_ptr<Center> (*center)(const Group& workers, const at::Tensor& like,
                                    const ServerCenterOptions& options);
};

}  // namespace weft::strategy

// Runs a collective on flat memory: directly in shared memory, or by a schedule over messages.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "weft/comm/group.h"
#include "weft/comm/internal/tuning.h"
#include "weft/net/endpoint.h"
#include "weft/net/memory/direct.h"
#include "weft/net/memory/host.h"
#include "weft/schedule/schedule.h"

namespace weft::comm::internal {

class Engine {
 public:
  virtual ~Engine() = default;
  // Runs the collective. Throws kInvalidArgument on this rank before any transfer if the type does
  // not have the operation.
  void run(schedule::Collective collective, const net::DirectArgs& args);
  virtual net::Endpoint& endpoint() = 0;
  virtual net::Host* host() = 0;
  // Ends the calls of all ranks: those of others with kAborted, naming this rank and `why`.
  virtual void fail(const Error& why) noexcept = 0;
  // Ends the calls of this rank, and of those of its host, which still end the calls that all ranks
  // have made. Other hosts are not told.
  virtual void stop(const Error& why) noexcept = 0;
  // Name of the transport, for people: "shared memory".
  virtual std::string describe() const = 0;
  // See Group::has_ordered_sums().
  virtual bool has_ordered_sums() const { return true; }
  // See Group::split().
  virtual const HostSplit* split() { return nullptr; }
  // What this engine has moved so far. Any thread may call it.
  virtual Traffic traffic() { return {.sent_bytes = endpoint().sent_bytes()}; }

 private:
  virtual void perform(schedule::Collective collective, const net::DirectArgs& args) = 0;
  // True if float16 is summed in float32 and rounded once. Otherwise run() averages float16 on a
  // float32 copy: its sums can overflow where the average does not.
  virtual bool rounds_once() const { return false; }
  void average_halves(schedule::Collective collective, const net::DirectArgs& args);
};

// Why no rank can wait for the others of this group any more: it has failed, or the process of a
// rank has died and nobody has noticed yet. nullopt: no reason is known. kPeerLost names the rank
// of the group; else kAborted. Any thread may call it.
std::optional<Error> loss_in(Engine& engine);

// Returns the member function of `direct` for `collective`.
void run_direct(net::Direct& direct, schedule::Collective collective, const net::DirectArgs& args);

// Takes ownership of both; `endpoint` carries send and recv.
std::unique_ptr<Engine> make_direct_engine(std::unique_ptr<net::Host> host,
                                           std::unique_ptr<net::Endpoint> endpoint,
                                           std::chrono::nanoseconds timeout);
// `tuning` chooses the schedules.
std::unique_ptr<Engine> make_message_engine(std::unique_ptr<net::Endpoint> endpoint,
                                            const Tuning& tuning = {});

}  // namespace weft::comm::internal

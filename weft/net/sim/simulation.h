// Simulates ranks and their network: the real executor and the real TCP framing on a virtual clock,
// with faults of networks and machines, all decided by one seed. A few seconds of simulated time
// take about a millisecond, and a run can be repeated exactly.
//
//   Simulation simulation({.world = 4,
//                          .seed = 7,
//                          .link = {.loss = 0.05},
//                          .faults = {{Fault::kKill, 20ms, 2}}});
//   auto outcomes = simulation.run(
//       [&](Endpoint& endpoint) { … endpoint.exchange(…, simulation.in(5s)) … });
//
// Ranks are threads, and one runs at a time. Computing takes no virtual time; waiting does. Equal
// options give equal runs if the bodies use deadlines from in() and nothing that depends on the
// machine (real clocks, addresses, other threads).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "weft/net/endpoint.h"

namespace weft::net::sim {

using Time = std::chrono::nanoseconds;  // virtual, from the start of the run

// Properties of every directed pair of ranks. All messages of a rank share its outgoing link.
struct Link {
  Time latency = std::chrono::microseconds(50);
  // Additional latency up to this value, drawn for each packet, so that packets overtake each
  // other.
  Time jitter{0};
  double bytes_per_second = 1.25e9;
  double loss = 0;       // share of packets that are lost
  double duplicate = 0;  // share of packets that arrive twice
};

struct Fault {
  enum Kind {
    kKill,       // process `a` ends; its kernel closes the connections
    kPowerOff,   // host `a` loses power and is silent
    kStop,       // process `a` is stopped (SIGSTOP); its kernel still answers
    kContinue,   // process `a` continues
    kPartition,  // no packet passes between `a` and `b`
    kHeal,       // packets pass again
    kCut,        // the connections between `a` and `b` are reset
    kDamage,     // one byte from `a` to `b` is changed, undetected by TCP
  };
  Kind kind = kKill;
  Time at{0};
  int a = -1;
  int b = -1;
};

struct Options {
  int world = 2;
  std::uint64_t seed = 0;
  Link link;
  std::vector<Fault> faults;
  // As in TcpOptions.
  std::uint32_t epoch = 0;
  int streams = 2;
  std::size_t room = std::size_t{64} << 20;
  std::chrono::milliseconds peer_timeout{10'000};
  // A run that lasts longer, in virtual time, counts as hanging.
  Time limit = std::chrono::hours(1);
};

// Outcome of a rank.
struct Outcome {
  bool died = false;           // ended by kKill or kPowerOff, while its body waited
  bool hung = false;           // still waiting at the time limit, or when no event was left
  std::optional<Error> error;  // error of its body
  Time ended{0};
};

// Number of faults that had an effect, so that a test can check that it tested something.
struct Counts {
  std::uint64_t packets = 0, lost = 0, blocked = 0, duplicated = 0, overtook = 0, damaged = 0;
  std::uint64_t sent_again = 0;
};

class Simulation {
 public:
  // Throws kInvalidArgument for invalid options.
  explicit Simulation(const Options& options);
  ~Simulation();

  // Runs body(endpoint) for every rank of one connected group. Returns the outcomes by rank when
  // all have ended. Call it once.
  std::vector<Outcome> run(const std::function<void(Endpoint&)>& body);

  // For bodies.
  Deadline in(Time timeout) const;
  Time now() const;
  // Advances virtual time for this rank, like a computation.
  void sleep(Endpoint& endpoint, Time time);

  // Hash of all events so far: packets, faults, turns, ends.
  std::uint64_t trace_hash() const;
  const Counts& counts() const;

 private:
  class World;
  std::unique_ptr<World> world_;
};

}  // namespace weft::net::sim

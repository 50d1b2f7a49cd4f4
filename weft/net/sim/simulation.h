// Ranks over a network that does not exist: the real executor and the real framing of TCP on a
// virtual clock, with every fault that a network or a machine can have, all decided by one seed.
// Seconds of a job's life take a millisecond, and a run can be repeated exactly.
//
//   Simulation simulation({.world = 4, .seed = 7, .link = {.loss = 0.05}, .faults = {{Fault::kKill,
//   20ms, 2}}});
//   auto outcomes = simulation.run([&](Endpoint& endpoint) { … endpoint.exchange(…,
//   simulation.in(5s)) … });
//
// Ranks are threads of which one runs at a time; computing takes no virtual time, waiting does.
// Bodies use deadlines from in() and nothing that depends on the machine (real clocks, addresses,
// other threads): then equal options give equal runs.
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

// Every directed pair of ranks. What a rank sends to all of them shares its line out.
struct Link {
  Time latency = std::chrono::microseconds(50);
  Time jitter{0};  // up to so much more, drawn for each packet: packets overtake each other
  double bytes_per_second = 1.25e9;
  double loss = 0;  // of all packets, like the next
  double duplicate = 0;
};

struct Fault {
  enum Kind {
    kKill,       // process `a` ends; its kernel closes the connections
    kPowerOff,   // host `a` falls silent
    kStop,       // process `a` stands still (SIGSTOP); its kernel still answers
    kContinue,   // process `a` goes on
    kPartition,  // no packet passes between `a` and `b`
    kHeal,       // they pass again
    kCut,        // the connections between `a` and `b` are reset
    kDamage,     // a byte of what `a` sends to `b` is changed, and TCP does not notice
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
  // A run that lasts longer, by the virtual clock, hangs.
  Time limit = std::chrono::hours(1);
};

// What became of a rank.
struct Outcome {
  bool died = false;  // by kKill or kPowerOff: its body was left where it waited
  bool hung = false;  // it waited when the limit was reached, or when nothing more could happen
  std::optional<Error> error;  // what its body threw
  Time ended{0};
};

// How many faults were really there, so that a test can assert that it tested something.
struct Counts {
  std::uint64_t packets = 0, lost = 0, blocked = 0, duplicated = 0, overtook = 0, damaged = 0;
  std::uint64_t sent_again = 0;
};

class Simulation {
 public:
  // Throws kInvalidArgument where the options make no sense.
  explicit Simulation(const Options& options);
  ~Simulation();

  // Runs body(endpoint) for every rank of one connected group and returns what became of each, by
  // rank, when all have ended. Once.
  std::vector<Outcome> run(const std::function<void(Endpoint&)>& body);

  // For bodies.
  Deadline in(Time timeout) const;
  Time now() const;
  // Lets virtual time pass for this rank, as computing would.
  void sleep(Endpoint& endpoint, Time time);

  // Of everything that happened so far: packets, faults, turns, ends.
  std::uint64_t trace_hash() const;
  const Counts& counts() const;

 private:
  class World;
  std::unique_ptr<World> world_;
};

}  // namespace weft::net::sim

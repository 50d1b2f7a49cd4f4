// Costs of communication on a system: latency, bandwidth and reduction of each transport, and whole
// collectives as they were measured.
//
// Times are in seconds, sizes in bytes. All ranks of a group must plan with the same table.
// Otherwise they choose different algorithms and wait for each other forever. The code that forms a
// group sends rank 0's table to the other ranks, as text().
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/schedule/schedule.h"

namespace weft::plan {

enum class Transport : std::uint8_t {
  kDirect,  // Ranks of a host read each other's memory (net/memory/direct.h).
  kShm,     // Messages between ranks of a host (net/shm/shm.h).
  kTcp,     // Messages over TCP (net/tcp/tcp.h).
  kMpi,     // Messages over MPI (net/mpi/mpi.h).
};
std::span<const Transport> transports();
const char* to_string(Transport transport);

// Seconds as a function of bytes: straight lines between knots, never below 0. The curve is
// constant below the first knot and keeps its last slope beyond the last one. With one knot it is
// constant; without knots it is 0. Measured curves bend where caches end and protocols change; each
// line between two knots is alpha + beta n.
class Curve {
 public:
  struct Knot {
    double bytes = 0;
    double seconds = 0;
    bool operator==(const Knot&) const = default;
  };

  Curve() = default;
  // Knots come by rising bytes. Throws Error(kInvalidArgument) if they do not rise, or if a value
  // is negative or not finite.
  explicit Curve(std::vector<Knot> knots);
  // alpha + beta n (Hockney: The communication challenge for MPP, 1994).
  static Curve line(double alpha, double beta);

  double at(double bytes) const;
  bool empty() const { return knots_.empty(); }
  const std::vector<Knot>& knots() const { return knots_; }
  bool operator==(const Curve&) const = default;

 private:
  std::vector<Knot> knots_;
};

// A whole collective, measured for one world size: seconds by payload(). It needs no model.
struct Measured {
  schedule::Collective collective = schedule::Collective::kAllReduce;
  schedule::Algorithm algorithm = schedule::Algorithm::kRing;
  int world = 2;
  Curve seconds;
  std::int64_t chunk = 0;  // Bytes of a block of a pipelined algorithm; 0: the schedule's default.
  bool operator==(const Measured&) const = default;
};

// Costs of a transport. A round in which a rank sends s bytes, receives r bytes and reduces g of
// them, with at most m messages in each direction, costs
//   message(max(s, r)) + duplex (message(min(s, r)) - message(0)) + overhead (m - 1) + reduce(g).
struct TransportCost {
  // One message to a peer that waits for it. kDirect: a read of a peer's memory.
  Curve message;
  // Share of the smaller direction's cost that is added: 0 on a full-duplex wire, about 1 if
  // processors copy.
  double duplex = 0;
  double overhead = 0;  // Seconds for each further message of a round.
  Curve reduce;         // Combining received bytes with as many local bytes.
  Curve copy;           // Copying from local memory to local memory.
  double meeting = 0;   // kDirect: seconds of a meeting for each rank of the world.
  std::vector<Measured> measured;
  bool operator==(const TransportCost&) const = default;
};

struct CostTable {
  std::string machine;  // Identity of the machine (calibration.h); "" for defaults.
  std::string date;     // Date of the measurement, "2026-11-21"; "" for defaults.
  std::map<Transport, TransportCost> transports;

  // Costs of the transport; the built-in ones if the table has none.
  const TransportCost& of(Transport transport) const;

  // One fact per line, with numbers that are read back exactly, and a checksum at the end. parse()
  // throws Error(kCorrupt), naming the line or the checksum, for anything that text() does not
  // write.
  std::string text() const;
  static CostTable parse(std::string_view text);
  // 64 bits of FNV-1a over text(): a cheap check that all ranks have equal tables.
  std::uint64_t hash() const;
  bool operator==(const CostTable&) const = default;
};

// Costs that are assumed if nothing was measured: two recent cores that share a cache, and
// 10 Gbit/s Ethernet.
const CostTable& default_table();

// Size by which curves of collectives are looked up: the longer of input and output on the rank
// that holds most. 0 for a barrier.
std::int64_t payload(const schedule::Request& request, std::size_t element);

}  // namespace weft::plan

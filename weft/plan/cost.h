// What communication costs on a system: latency, bandwidth and reduction of each transport, and
// whole collectives as they were measured.
//
// Times are seconds, sizes bytes. All ranks of a group must plan with one table, else they choose
// differently and wait for each other for ever: whoever makes a group takes rank 0's, as text(), to
// the others.
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
  kDirect,  // ranks of a host read each other's memory (net/direct.h)
  kShm,     // messages between ranks of a host (net/shm.h)
  kTcp,     // messages over TCP (net/tcp.h)
  kMpi,     // messages over MPI
};
std::span<const Transport> transports();
const char* to_string(Transport transport);

// Seconds for so many bytes: straight lines between knots, level below the first, beyond the last
// as steep as before it. One knot is a constant; none is zero everywhere. Real curves bend where
// caches end and protocols change, a line between two knots is alpha + beta n.
class Curve {
 public:
  struct Knot {
    double bytes = 0;
    double seconds = 0;
    bool operator==(const Knot&) const = default;
  };

  Curve() = default;
  // Knots by rising bytes. Throws Error(kInvalidArgument) where they do not rise, or a value is
  // negative or not finite.
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

// A whole collective in a world in which it was measured: seconds by payload(), from which no model
// is needed.
struct Measured {
  schedule::Collective collective = schedule::Collective::kAllReduce;
  schedule::Algorithm algorithm = schedule::Algorithm::kRing;
  int world = 2;
  Curve seconds;
  std::int64_t chunk = 0;  // bytes of a block of a pipelined algorithm; 0: the schedule's own
  bool operator==(const Measured&) const = default;
};

// A round of a rank that sends s bytes, receives r bytes in m messages and reduces g of them costs
//   message(max(s, r)) + duplex (message(min(s, r)) - message(0)) + overhead (m - 1) + reduce(g).
struct TransportCost {
  Curve message;  // one message to a peer that waits for it; kDirect: reading a peer's memory
  // What the other direction adds: 0 on a full-duplex wire, about 1 where processors copy.
  double duplex = 0;
  double overhead = 0;  // of each further message of a round
  Curve reduce;         // combining so many received bytes with as many of one's own
  Curve copy;           // from one's own memory to one's own
  double meeting = 0;   // kDirect: until all ranks have come; per rank
  std::vector<Measured> measured;
  bool operator==(const TransportCost&) const = default;
};

struct CostTable {
  std::string machine;  // whose it is (calibration.h); "" for defaults
  std::string date;     // of the measurement, "2026-11-21"; "" for defaults
  std::map<Transport, TransportCost> transports;

  // The transport's costs; the built-in ones where the table has none.
  const TransportCost& of(Transport transport) const;

  // One line a fact, numbers so that they read back the same, a checksum at the end. parse() throws
  // Error(kCorrupt) naming the line for anything that text() does not write.
  std::string text() const;
  static CostTable parse(std::string_view text);
  // Equal for equal tables; 64 bits of FNV-1a over text(), a cheap check that ranks agree.
  std::uint64_t hash() const;
  bool operator==(const CostTable&) const = default;
};

// What is assumed where nothing was measured: two recent cores that share a cache, and 10 Gbit/s
// Ethernet.
const CostTable& default_table();

// The bytes by which curves of collectives go: what the busiest rank holds, the longer of input and
// output. 0 for a barrier.
std::int64_t payload(const schedule::Request& request, std::size_t element);

}  // namespace weft::plan

// A simulated network on a virtual clock. Packets are delayed, reordered, duplicated or lost, as
// decided by one seed.
//
// It is a single-threaded discrete-event simulation: events run in the order of their times; events
// with equal times run in the order of creation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/random.h"
#include "weft/net/sim/simulation.h"

namespace weft::net::sim::internal {

// A segment of one direction of a connection, as in TCP: bytes [sequence, sequence + size), and the
// number of bytes that the sender has received.
struct Packet {
  int from = -1;
  int to = -1;
  int stream = 0;
  std::uint64_t sequence = 0;
  std::uint64_t ack = 0;
  std::uint64_t window = 0;  // bytes beyond `ack` that the sender of this packet accepts
  bool fin = false;          // the direction ends after these bytes
  bool reset = false;        // the connection is reset
  std::vector<std::byte> bytes;
};

// Hash of all events. Two runs with the same hash were identical.
class Trace {
 public:
  template <typename... Words>
  void note(Words... words) {
    (mix(static_cast<std::uint64_t>(words)), ...);
  }
  std::uint64_t hash() const { return hash_; }

 private:
  // FNV-1a over the eight bytes of a word.
  void mix(std::uint64_t word) {
    for (int i = 0; i < 8; ++i, word >>= 8) hash_ = (hash_ ^ (word & 0xff)) * 0x100000001b3;
  }
  std::uint64_t hash_ = 0xcbf29ce484222325;
};

class Network {
 public:
  using Action = std::function<void()>;

  Network(int world, const Link& link, std::uint64_t seed);

  Time now() const { return now_; }
  // Schedules an event after `delay`.
  void after(Time delay, Action action);
  // Runs the next event. Returns false if there is none.
  bool step();

  void send(Packet packet);
  void on_packet(std::function<void(Packet&)> deliver) { deliver_ = std::move(deliver); }

  // Drops all packets between the two, in both directions, including those in flight.
  void set_partition(int a, int b, bool cut);
  // Drops all packets from and to this rank from now on.
  void silence(int rank) { silent_.insert(rank); }
  // Changes one byte of the next packet with data from `from` to `to`, undetected by TCP's
  // checksum.
  void damage_next(int from, int to) { damaged_.insert({from, to}); }

  Trace& trace() { return trace_; }
  const Counts& counts() const { return counts_; }
  Counts& counts() { return counts_; }

 private:
  struct Event {
    Time at;
    std::uint64_t number;
    Action action;
    bool operator>(const Event& other) const {
      return at != other.at ? at > other.at : number > other.number;
    }
  };

  bool passes(int from, int to) const;
  void carry(Packet packet, Time depart);

  Link link_;
  Random random_;
  Time now_{0};
  std::uint64_t events_made_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::function<void(Packet&)> deliver_;
  std::vector<Time> free_at_;                    // time at which a rank's outgoing link is free
  std::set<std::pair<int, int>> cut_, damaged_;  // ordered pairs (from, to)
  std::set<int> silent_;
  std::vector<Time> last_arrival_;  // by from * world + to, to count reordered packets
  Trace trace_;
  Counts counts_;
};

}  // namespace weft::net::sim::internal

// A network on a virtual clock: what is put in at one rank comes out at another later, in another
// order, twice, or never. One seed decides.
//
// A discrete-event simulation: events happen in the order of their time, and of their making where
// the times are equal. Single-threaded.
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

// A segment of one direction of a connection, as TCP's: bytes [sequence, sequence + size), and what
// the sender has received so far.
struct Packet {
  int from = -1;
  int to = -1;
  int stream = 0;
  std::uint64_t sequence = 0;
  std::uint64_t ack = 0;
  std::uint64_t window = 0;  // bytes beyond `ack` that the sender of this packet takes
  bool fin = false;          // the direction ends behind these bytes
  bool reset = false;        // the connection is gone
  std::vector<std::byte> bytes;
};

// A hash of everything that happened: two runs with the same one were the same run.
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
  // Happens after `delay`.
  void after(Time delay, Action action);
  // Makes the next event happen; false when there is none.
  bool step();

  void send(Packet packet);
  void on_packet(std::function<void(Packet&)> deliver) { deliver_ = std::move(deliver); }

  // No packet passes between the two, in either direction; those under way are lost too.
  void set_partition(int a, int b, bool cut);
  // Nothing leaves or reaches this rank any more.
  void silence(int rank) { silent_.insert(rank); }
  // The next packet from `from` to `to` that carries bytes has one of them changed, and TCP's own
  // checksum does not notice.
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
  std::vector<Time> free_at_;  // when a rank's line out has sent what it was given
  std::set<std::pair<int, int>> cut_, damaged_;  // pairs; (from, to)
  std::set<int> silent_;
  std::vector<Time> last_arrival_;  // by from * world + to, to count overtaking
  Trace trace_;
  Counts counts_;
};

}  // namespace weft::net::sim::internal

// Plays the rounds one after the other, for all ranks at once. What a message needs is known when
// its round begins: when its ranks are ready, and which messages use its ports before it. So there
// is no queue of events, and each message is visited once.
//
//   collect()   messages of the round, from the parts (internal/parts.h)
//   sort        by when their senders are ready, if a port sends or gets several
//   carry()     a message begins when its sender is ready and both ports are free
//   settle()    a rank is ready again when its last message has ended and its data is added
//
// Critical path. Each rank has the chain of events that made it ready. settle() gives a rank the
// chain of the sender whose message it waited for last, plus that message. All chains are read as
// of the beginning of the round, and written to next_chain_. Hops are linked to the hop before,
// since many chains share their beginning.
//
// Arrays are by place in the order of the topology. rank_at() gives the rank of a place.
#include "weft/plan/collectives/simulate.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/text/words.h"
#include "weft/plan/collectives/internal/parts.h"

namespace weft::plan {
namespace {

using internal::Event;
using internal::Parts;
using schedule::Link;
using schedule::Topology;

constexpr int kMaxLevels = 6;  // number of scopes
constexpr std::int64_t kMaxHops = 100'000;

// Critical path of one rank. Its time is the sum of the four.
struct Chain {
  double latency = 0, wire = 0, waiting = 0, reduction = 0;
  std::array<std::int64_t, kMaxLevels> messages{};
  int hop = -1;  // last hop, as an index of hops_
};

struct Message {
  int from, to;  // places
  double bytes;
  bool reduces;
  int level, port_out, port_in;
  double begin = 0, end = 0;
};

// Indexes by int, since ranks, ports and levels are ints.
template <class Values>
decltype(auto) at(Values& values, int index) {
  return values[static_cast<std::size_t>(index)];
}

class Player {
 public:
  Player(const Topology& topology, const Parts& parts)
      : topology_(topology), parts_(parts), cursor_(parts.parts.size()) {
    const auto world = static_cast<std::size_t>(topology.world());
    ready_.resize(world);
    done_.resize(world);
    added_.resize(world);
    decided_.resize(world, -1);
    chain_.resize(world);
    next_chain_.resize(world);
    // Ports of all levels in one line: one for each part that the links of the level join, and at
    // the innermost level one for each rank.
    int ports = 0;
    for (int level = 0; level < topology.num_levels(); ++level) {
      first_port_.push_back(ports);
      ports +=
          level + 1 < topology.num_levels() ? topology.num_groups(level + 1) : topology.world();
    }
    out_free_.resize(static_cast<std::size_t>(ports));
    in_free_.resize(static_cast<std::size_t>(ports));
    used_out_.resize(static_cast<std::size_t>(ports));
    used_in_.resize(static_cast<std::size_t>(ports));
    sent_.resize(static_cast<std::size_t>(ports));
    std::int64_t messages = 0;
    for (const auto& part : parts.parts)
      messages += static_cast<std::int64_t>(part.size()) * blocks();
    keep_hops_ = messages <= kMaxHops;
    result_.levels.resize(static_cast<std::size_t>(topology.num_levels()));
  }

  Simulation play() {
    for (int round = 0; round <= parts_.rounds; ++round) {
      collect(round);
      if (messages_.empty() && locals_.empty()) continue;
      if (shared_) {
        std::stable_sort(messages_.begin(), messages_.end(),
                         [&](const Message& a, const Message& b) {
                           return at(ready_, a.from) < at(ready_, b.from);
                         });
      }
      carry();
      settle(round);
    }
    return finish();
  }

 private:
  int blocks() const { return topology_.world() / static_cast<int>(parts_.parts.size()); }
  int rank_at(int place) const { return at(topology_.order(), place); }

  // Collects the round's messages: the first message of all ranks, then the second of all ranks,
  // and so on, since all begin at once.
  void collect(int round) {
    messages_.clear();
    locals_.clear();
    shared_ = false;
    std::size_t longest = 0;
    const auto length = static_cast<int>(parts_.parts.size());
    for (int t = 0; t < length; ++t) {
      const auto& part = at(parts_.parts, t);
      auto& [begin, end] = at(cursor_, t);
      begin = end;
      while (end < part.size() && part[end].round == round) ++end;
      longest = std::max(longest, end - begin);
    }
    for (std::size_t slot = 0; slot < longest; ++slot) {
      for (int first = 0; first < topology_.world(); first += length) {
        for (int t = 0; t < length; ++t) {
          const auto [begin, end] = at(cursor_, t);
          if (begin + slot < end) add(at(parts_.parts, t)[begin + slot], first, first + t, round);
        }
      }
    }
  }
  void add(const Event& event, int first, int place, int round) {
    if (event.peer < 0) {
      locals_.push_back({place, event.bytes});
      return;
    }
    int from = first + event.peer;
    if (from >= topology_.world()) from -= topology_.world();
    Message m{.from = from,
              .to = place,
              .bytes = event.bytes,
              .reduces = event.reduces,
              .level = 0,
              .port_out = from,
              .port_in = place};
    if (topology_.num_levels() > 1) find_ports(m);
    for (int* const last : {&at(used_out_, m.port_out), &at(used_in_, m.port_in)})
      shared_ |= std::exchange(*last, round + 1) == round + 1;
    messages_.push_back(m);
  }
  void find_ports(Message& m) const {
    const int from = rank_at(m.from), to = rank_at(m.to);
    m.level = topology_.level_of(from, to);
    const bool innermost = m.level + 1 == topology_.num_levels();
    m.port_out =
        at(first_port_, m.level) + (innermost ? from : topology_.group_of(m.level + 1, from));
    m.port_in = at(first_port_, m.level) + (innermost ? to : topology_.group_of(m.level + 1, to));
  }

  // Sets when each message begins and ends, and occupies its ports for that time.
  void carry() {
    done_ = ready_;
    for (int i = 0; i < static_cast<int>(messages_.size()); ++i) {
      Message& m = at(messages_, i);
      const Link& link = topology_.level(m.level).link;
      const double wire = m.bytes / link.bandwidth;
      m.begin = std::max({at(ready_, m.from), at(out_free_, m.port_out), at(in_free_, m.port_in)});
      at(out_free_, m.port_out) = at(in_free_, m.port_in) = m.begin + wire;
      m.end = m.begin + link.latency + wire;
      for (const int place : {m.from, m.to}) {
        if (m.end <= at(done_, place)) continue;
        at(done_, place) = m.end;
        at(decided_, place) = i;
      }
      if (m.reduces) at(added_, m.to) += m.bytes / link.reduction;
      auto& traffic = at(result_.levels, m.level);
      ++traffic.messages;
      traffic.bytes += m.bytes;
      at(sent_, m.port_out) += m.bytes;
    }
    const Link& inner = topology_.level(topology_.num_levels() - 1).link;
    for (const auto& [place, bytes] : locals_) at(added_, place) += bytes / inner.reduction;
  }

  // Moves every rank to the end of its round, with the critical path that leads there.
  void settle(int round) {
    for (int place = 0; place < topology_.world(); ++place) {
      const int decided = std::exchange(at(decided_, place), -1);
      Chain chain = at(chain_, decided < 0 ? place : at(messages_, decided).from);
      if (decided >= 0) extend(chain, at(messages_, decided));
      const double added = std::exchange(at(added_, place), 0);
      chain.reduction += added;
      at(done_, place) += added;
      if (keep_hops_ && decided >= 0) {
        const Message& m = at(messages_, decided);
        hops_.push_back({{round, rank_at(m.from), rank_at(m.to), m.level, m.bytes,
                          at(ready_, m.from), at(done_, place)},
                         chain.hop});
        chain.hop = static_cast<int>(hops_.size()) - 1;
      }
      at(next_chain_, place) = chain;
    }
    ready_.swap(done_);
    chain_.swap(next_chain_);
  }
  void extend(Chain& chain, const Message& m) const {
    const Link& link = topology_.level(m.level).link;
    chain.waiting += m.begin - at(ready_, m.from);
    chain.latency += link.latency;
    chain.wire += m.bytes / link.bandwidth;
    ++at(chain.messages, m.level);
  }

  Simulation finish() {
    const int last =
        static_cast<int>(std::max_element(ready_.begin(), ready_.end()) - ready_.begin());
    const Chain& chain = at(chain_, last);
    result_.count = parts_.count;
    result_.seconds = at(ready_, last);
    result_.rounds = parts_.rounds;
    result_.last_rank = rank_at(last);
    result_.by_symmetry = parts_.by_symmetry;
    auto& critical = result_.critical;
    critical.messages.assign(chain.messages.begin(),
                             chain.messages.begin() + topology_.num_levels());
    critical.latency = chain.latency;
    critical.wire = chain.wire;
    critical.waiting = chain.waiting;
    critical.reduction = chain.reduction;
    for (int hop = chain.hop; hop >= 0; hop = at(hops_, hop).before)
      critical.hops.push_back(at(hops_, hop).hop);
    std::reverse(critical.hops.begin(), critical.hops.end());
    for (int level = 0; level < topology_.num_levels(); ++level) {
      const auto begin = sent_.begin() + at(first_port_, level);
      const auto end = level + 1 < topology_.num_levels()
                           ? sent_.begin() + at(first_port_, level + 1)
                           : sent_.end();
      at(result_.levels, level).busiest_port = *std::max_element(begin, end);
    }
    return std::move(result_);
  }

  struct Local {
    int place;
    double bytes;
  };
  struct Linked {
    Hop hop;
    int before;
  };

  const Topology& topology_;
  const Parts& parts_;
  std::vector<std::pair<std::size_t, std::size_t>> cursor_;  // range of the round's events, by part
  std::vector<double> ready_, done_, added_;                 // by place
  std::vector<int> decided_;  // by place: the message that ended last; -1: none
  std::vector<Chain> chain_, next_chain_;
  std::vector<int> first_port_;             // by level
  std::vector<double> out_free_, in_free_;  // by port
  // By port: the last round that sent or got a message through it, plus one.
  std::vector<int> used_out_, used_in_;
  std::vector<double> sent_;
  std::vector<Message> messages_;  // messages of the round
  std::vector<Local> locals_;
  std::vector<Linked> hops_;
  bool shared_ = false;  // some port has several messages to send in this round
  bool keep_hops_ = false;
  Simulation result_;
};

}  // namespace

Simulation simulate(const schedule::Request& request, std::size_t element) {
  const Topology topology = request.topology ? *request.topology : Topology::flat(request.world);
  WEFT_REQUIRE(topology.world() == request.world,
               "simulate: the topology has " + counted(topology.world(), "rank") +
                   ", the request " + std::to_string(request.world));
  return Player(topology, internal::parts_of(request, element)).play();
}

}  // namespace weft::plan

// For tests: store processes, their network, clocks and journals, simulated. One seed decides
// everything, so a run can be repeated.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/store/testing/agreement.h"
#include "weft/store/testing/simulated_time.h"

namespace weft::store {

class SimulatedCluster : public SimulatedTime {
 public:
  using Node = internal::Node;
  using Answered = std::function<void(const internal::Response&)>;

  struct Options {
    std::uint32_t nodes = 3;
    std::uint64_t seed = 0;
    internal::Flaw flaw = internal::Flaw::kNone;
    Time latency = std::chrono::microseconds(200);
    Time jitter{0};         // messages overtake each other
    double duplicates = 0;  // share of messages that arrive twice
    double clock_skew = 0;  // clocks run faster or slower by up to this
    bool encodes = false;   // messages pass through their bytes
  };
  struct Counts {
    std::uint64_t messages = 0, blocked = 0, duplicated = 0, kills = 0, losses = 0, torn_steps = 0;
    std::uint64_t leaders = 0, members = 0;
  };

  explicit SimulatedCluster(const Options& options) : options_(options), random_(options.seed, 1) {
    hosts_.resize(options.nodes);
    blocked_.assign(options.nodes, std::vector<int>(options.nodes, 0));
    for (std::uint32_t i = 0; i < options.nodes; ++i) {
      hosts_[i].rate = 1 + options.clock_skew * (2 * random_.uniform() - 1);
      start(i);
    }
  }

  // ---- faults
  // Ends the process, possibly between two effects of a step. Its journal remains.
  void kill(std::uint32_t node, Time restart_after) {
    if (hosts_[node].node == nullptr) return;
    ++counts_.kills;
    stop(node, true);
    after(restart_after, [this, node] { start(node); });
  }
  // Ends the host: memory, journal and clients are gone, and nobody closes its connections.
  void lose(std::uint32_t node, Time restart_after) {
    if (!can_lose(node)) return;
    ++counts_.losses;
    if (hosts_[node].node != nullptr) stop(node, false);
    hosts_[node].journal.clear();
    hosts_[node].calls.clear();
    hosts_[node].member = 0;
    ++hosts_[node].lives;
    after(restart_after, [this, node] { start(node); });
  }
  // True if the store can go on without the memory of this node.
  bool can_lose(std::uint32_t node) const {
    const auto remains = [&](internal::MemberId id) {
      for (std::uint32_t other = 0; other < hosts_.size(); ++other) {
        if (other != node && hosts_[other].member == id) return true;
      }
      return false;
    };
    for (const Host& host : hosts_) {
      if (host.member != 0 && !host.configuration.voters.empty() &&
          !is_quorum(host.configuration, remains))
        return false;
    }
    return true;
  }
  void pause(std::uint32_t node, Time time) {
    hosts_[node].paused_until = std::max(hosts_[node].paused_until, now() + time);
    after(time, [this, node] { resume(node); });
  }
  void block(std::uint32_t from, std::uint32_t to) { ++blocked_[from][to]; }
  void unblock(std::uint32_t from, std::uint32_t to) { --blocked_[from][to]; }
  // Ends the connection; it is made again.
  void cut(std::uint32_t a, std::uint32_t b) {
    for (const auto& [at, other] : {std::pair(a, b), std::pair(b, a)}) {
      deliver(at, [other = other](Node& node) { node.disconnected(other); });
      after(std::chrono::milliseconds(20), [this, at = at, other = other] {
        deliver(at, [other](Node& node) { node.connected(other); });
      });
    }
  }
  void jump_clock(std::uint32_t node, Time by) { hosts_[node].offset += by; }
  // The next step of this node ends it, before or after its journal is written.
  void tear_next_step(std::uint32_t node) { hosts_[node].tears = true; }

  // ---- clients
  // Asks the node's process, and its successors until one answers. Dropped if the host is lost.
  void call(std::uint32_t node, const internal::Request& request, Answered answered) {
    const Node::Token token = ++last_token_;
    hosts_[node].calls[token] = {request, std::move(answered)};
    deliver(node, [token, request](Node& at) { at.request(token, request); });
  }
  // Number of times that the host was lost: clients of an earlier life have ended.
  std::uint64_t lives(std::uint32_t node) const { return hosts_[node].lives; }

  // ---- inspection
  // Null while the process is down.
  const Node* node(std::uint32_t node) const { return hosts_[node].node.get(); }
  std::uint32_t size() const { return options_.nodes; }
  const Counts& counts() const { return counts_; }
  // True if all nodes are up, members of one store, and as many as can vote do.
  bool is_whole() const {
    const std::size_t voters = std::min<std::size_t>(hosts_.size(), 7);
    return std::all_of(hosts_.begin(), hosts_.end(), [&](const Host& host) {
      return host.node != nullptr && host.member != 0 && host.configuration.voters.size() == voters;
    });
  }
  // True if all nodes have applied the same entries.
  bool is_even() const {
    return std::all_of(hosts_.begin(), hosts_.end(), [&](const Host& host) {
      return host.node != nullptr && host.node->applied() == hosts_[0].node->applied();
    });
  }
  std::optional<std::uint32_t> leader() const {
    for (std::uint32_t i = 0; i < hosts_.size(); ++i) {
      if (hosts_[i].node && hosts_[i].node->raft() && hosts_[i].node->raft()->is_settled())
        return i;
    }
    return std::nullopt;
  }
  Random& random() { return random_; }

 private:
  struct Call {
    internal::Request request;
    Answered answered;
  };
  struct Host {
    std::unique_ptr<Node> node;
    std::uint64_t process = 0;  // counts its processes
    std::uint64_t lives = 0;
    std::vector<std::string> journal;
    std::map<Node::Token, Call> calls;
    internal::MemberId member = 0;
    internal::Configuration configuration;
    internal::Index checked = 0;
    double rate = 1;
    Time offset = std::chrono::hours(2);
    Time paused_until{};
    std::vector<std::function<void(Node&)>> held;  // while paused
    Time wakes_at = Time::max();
    bool tears = false;
  };

  Time clock(const Host& host) const {
    return host.offset +
           Time(static_cast<Time::rep>(static_cast<double>(now().count()) * host.rate));
  }

  void start(std::uint32_t i);
  void meet(std::uint32_t a, std::uint32_t b);
  void stop(std::uint32_t i, bool closes);
  void resume(std::uint32_t i);
  void deliver(std::uint32_t i, const std::function<void(Node&)>& input);
  void step(std::uint32_t i);
  void check(Host& host);
  void send(std::uint32_t from, Node::ToNode to);

  const Options options_;
  Random random_;
  std::vector<Host> hosts_;
  std::vector<std::vector<int>> blocked_;
  Node::Token last_token_ = 0;
  Counts counts_;
  Agreement agreement_;
};

}  // namespace weft::store

#include "weft/store/testing/simulated_steps.h"

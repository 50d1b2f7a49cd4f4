// For tests: store processes, their network, clocks and journals, simulated. One seed decides
// everything, so a run can be repeated.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "weft/store/internal/node.h"

namespace weft::store {

// A broken promise of the store.
struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class SimulatedCluster {
 public:
  using Node = internal::Node;
  using Time = internal::Time;
  using Event = std::function<void()>;
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

  // ---- time
  Time now() const { return now_; }
  void after(Time delay, Event event) {
    events_.push({now_ + delay, order_++, std::make_shared<Event>(std::move(event))});
  }
  // Runs events until then, or until `done` is true.
  void run_until(Time end, const std::function<bool()>& done = {}) {
    while (!events_.empty() && events_.top().at <= end && !(done && done())) {
      const Scheduled next = events_.top();
      events_.pop();
      now_ = next.at;
      (*next.event)();
    }
    if (!done || !done()) now_ = std::max(now_, end);
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
    hosts_[node].paused_until = std::max(hosts_[node].paused_until, now_ + time);
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
  struct Scheduled {
    Time at;
    std::uint64_t order;
    std::shared_ptr<Event> event;
    bool operator<(const Scheduled& other) const {
      return std::tie(at, order) > std::tie(other.at, other.order);
    }
  };
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
           Time(static_cast<Time::rep>(static_cast<double>(now_.count()) * host.rate));
  }

  void start(std::uint32_t i) {
    Host& host = hosts_[i];
    if (host.node != nullptr) return;
    internal::Saved saved;
    for (const std::string& record : host.journal) replay(record, saved);
    ++host.process;
    host.checked = 0;
    host.node = std::make_unique<Node>(internal::NodeOptions{.node = i,
                                                             .founders = options_.nodes,
                                                             .address = "node" + std::to_string(i),
                                                             .seed = random_.next_u64(),
                                                             .flaw = options_.flaw},
                                       std::move(saved), clock(host));
    for (std::uint32_t other = 0; other < hosts_.size(); ++other) {
      if (other == i || hosts_[other].node == nullptr) continue;
      const Time delay = std::chrono::milliseconds(1 + random_.below(20));
      after(delay, [this, i, other] { meet(i, other); });
    }
    for (const auto& [token, call] : host.calls) host.node->request(token, call.request);
    step(i);
  }

  void meet(std::uint32_t a, std::uint32_t b) {
    if (hosts_[a].node == nullptr || hosts_[b].node == nullptr) return;
    for (const auto& [at, other] : {std::pair(a, b), std::pair(b, a)}) {
      deliver(at, [other = other](Node& node) {
        node.disconnected(other);  // the connection to its former process
        node.connected(other);
      });
    }
  }

  void stop(std::uint32_t i, bool closes) {
    Host& host = hosts_[i];
    host.node.reset();
    host.held.clear();
    host.wakes_at = Time::max();
    host.tears = false;
    for (std::uint32_t other = 0; closes && other < hosts_.size(); ++other) {
      after(options_.latency, [this, i, other] {
        if (other != i) deliver(other, [i](Node& node) { node.disconnected(i); });
      });
    }
  }

  void resume(std::uint32_t i) {
    if (now_ < hosts_[i].paused_until || hosts_[i].node == nullptr) return;
    hosts_[i].node->advance(clock(hosts_[i]));
    for (const auto& input : std::exchange(hosts_[i].held, {})) {
      if (hosts_[i].node == nullptr) return;
      input(*hosts_[i].node);
    }
    step(i);
  }

  // Gives the node's process an input now, or when it runs again.
  void deliver(std::uint32_t i, const std::function<void(Node&)>& input) {
    Host& host = hosts_[i];
    if (host.node == nullptr) return;
    if (now_ < host.paused_until) {
      host.held.push_back(input);
      return;
    }
    host.node->advance(clock(host));
    input(*host.node);
    step(i);
  }

  void step(std::uint32_t i);
  void check(Host& host);
  void send(std::uint32_t from, Node::ToNode to);

  const Options options_;
  Random random_;
  Time now_{};
  std::uint64_t order_ = 0;
  std::priority_queue<Scheduled> events_;
  std::vector<Host> hosts_;
  std::vector<std::vector<int>> blocked_;
  Node::Token last_token_ = 0;
  Counts counts_;
  std::map<internal::Term, internal::MemberId> leaders_;
  std::vector<std::pair<internal::Term, std::size_t>>
      applied_;  // by index: term, hash of the entry
};

// Takes the node's output and performs it.
inline void SimulatedCluster::step(std::uint32_t i) {
  Host& host = hosts_[i];
  Node::Output output = host.node->take();
  const std::uint64_t tears = host.tears ? 1 + random_.below(2) : 0;
  if (tears == 1) {
    ++counts_.torn_steps;
    return kill(i, std::chrono::milliseconds(30));
  }
  if (output.restart_journal) host.journal.clear();
  for (std::string& record : output.records) host.journal.push_back(std::move(record));
  check(host);
  if (tears == 2) {
    ++counts_.torn_steps;
    return kill(i, std::chrono::milliseconds(30));
  }
  for (auto& message : output.messages) send(i, std::move(message));
  for (const auto& answer : output.answers) {
    const auto call = host.calls.find(answer.token);
    if (call == host.calls.end()) continue;
    const Answered answered = std::move(call->second.answered);
    host.calls.erase(call);
    after(std::chrono::microseconds(20),
          [answered, response = answer.response] { answered(response); });
  }
  const Time wait = std::max(host.node->next() - clock(host), Time(0));
  const Time wakes_at = now_ + wait;
  if (wakes_at >= host.wakes_at && host.wakes_at > now_) return;
  host.wakes_at = wakes_at;
  after(wait, [this, i, process = host.process, wakes_at] {
    if (hosts_[i].process != process || hosts_[i].wakes_at != wakes_at) return;
    hosts_[i].wakes_at = Time::max();
    deliver(i, [](Node&) {});
  });
}

// Checks that one member leads a term, and that all nodes apply the same entries.
inline void SimulatedCluster::check(Host& host) {
  const internal::Raft* const raft = host.node->raft();
  host.member = raft == nullptr ? 0 : raft->options().me;
  if (raft == nullptr) {
    host.checked = 0;
    return;
  }
  if (host.configuration != raft->log().configuration())
    host.configuration = raft->log().configuration();
  counts_.members = std::max(counts_.members, host.configuration.next_id - 1);
  if (raft->leads()) {
    const auto [leader, is_new] = leaders_.emplace(raft->term(), host.member);
    if (leader->second != host.member)
      throw Violation("two leaders in term " + std::to_string(raft->term()));
    counts_.leaders += is_new ? 1 : 0;
  }
  host.checked = std::max(host.checked, raft->log().base());
  for (; host.checked < host.node->applied(); ++host.checked) {
    const internal::LogEntry& entry = raft->log().at(host.checked + 1);
    const std::pair mine(entry.term, std::hash<std::string>()(entry.data));
    if (applied_.size() <= host.checked) applied_.resize(host.checked + 1);
    auto& theirs = applied_[host.checked];
    if (theirs.first == 0) theirs = mine;
    if (theirs != mine)
      throw Violation("nodes apply different entries at index " + std::to_string(host.checked + 1));
  }
}

inline void SimulatedCluster::send(std::uint32_t from, Node::ToNode to) {
  ++counts_.messages;
  if (to.node >= hosts_.size() || to.node == from) throw Violation("a message to no other node");
  const bool twice = random_.uniform() < options_.duplicates;
  counts_.duplicated += twice ? 1 : 0;
  internal::Message message = std::move(to.message);
  if (options_.encodes) message = internal::decode_message(encode(message));
  const auto shared = std::make_shared<const internal::Message>(std::move(message));
  for (int copy = 0; copy < (twice ? 2 : 1); ++copy) {
    const auto jitter = static_cast<std::uint64_t>(options_.jitter.count()) + 1;
    after(options_.latency + Time(static_cast<Time::rep>(random_.below(jitter))),
          [this, from, node = to.node, process = hosts_[to.node].process, shared] {
            if (blocked_[from][node] > 0) ++counts_.blocked;
            if (blocked_[from][node] > 0 || hosts_[node].process != process) return;
            deliver(node, [from, shared](Node& at) { at.receive(from, *shared); });
          });
  }
}

}  // namespace weft::store

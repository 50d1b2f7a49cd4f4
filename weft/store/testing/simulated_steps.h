// For tests: the steps of simulated store processes. A part of simulated_cluster.h.
#pragma once

#include "weft/store/testing/simulated_cluster.h"

namespace weft::store {

inline void SimulatedCluster::start(std::uint32_t i) {
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

inline void SimulatedCluster::meet(std::uint32_t a, std::uint32_t b) {
  if (hosts_[a].node == nullptr || hosts_[b].node == nullptr) return;
  for (const auto& [at, other] : {std::pair(a, b), std::pair(b, a)}) {
    deliver(at, [other = other](Node& node) {
      node.disconnected(other);  // the connection to its former process
      node.connected(other);
    });
  }
}

inline void SimulatedCluster::stop(std::uint32_t i, bool closes) {
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

inline void SimulatedCluster::resume(std::uint32_t i) {
  if (now() < hosts_[i].paused_until || hosts_[i].node == nullptr) return;
  hosts_[i].node->advance(clock(hosts_[i]));
  for (const auto& input : std::exchange(hosts_[i].held, {})) {
    if (hosts_[i].node == nullptr) return;
    input(*hosts_[i].node);
  }
  step(i);
}

// Gives the node's process an input now, or when it runs again.
inline void SimulatedCluster::deliver(std::uint32_t i, const std::function<void(Node&)>& input) {
  Host& host = hosts_[i];
  if (host.node == nullptr) return;
  if (now() < host.paused_until) {
    host.held.push_back(input);
    return;
  }
  host.node->advance(clock(host));
  input(*host.node);
  step(i);
}

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
  const Time wakes_at = now() + wait;
  if (wakes_at >= host.wakes_at && host.wakes_at > now()) return;
  host.wakes_at = wakes_at;
  after(wait, [this, i, process = host.process, wakes_at] {
    if (hosts_[i].process != process || hosts_[i].wakes_at != wakes_at) return;
    hosts_[i].wakes_at = Time::max();
    deliver(i, [](Node&) {});
  });
}

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
  agreement_.check(*host.node, host.checked);
  counts_.leaders = agreement_.leaders();
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

// For tests: wraps an endpoint and drops, delays, cuts and counts the messages of its rank.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "weft/net/endpoint.h"

namespace weft::net::internal {

// Delays are counted or released by the test, without a clock. Any thread may call any method.
class FaultyEndpoint final : public Endpoint {
 public:
  // Number of faults that were applied, so that a test can check that it tested something.
  struct Counts {
    std::uint64_t exchanges = 0, sends = 0, receives = 0, sent_bytes = 0, received_bytes = 0;
    std::uint64_t dropped = 0, delayed = 0, refused = 0;
  };

  explicit FaultyEndpoint(std::unique_ptr<Endpoint> inner) : inner_(std::move(inner)) {}

  // Drops the next `count` messages to `peer`; the sender does not notice.
  void drop(int peer, int count) {
    const std::lock_guard lock(mutex_);
    drops_[peer] += count;
  }
  // Holds messages to `peer` until release().
  void hold(int peer) {
    const std::lock_guard lock(mutex_);
    held_peers_.insert(peer);
  }
  // Delays each of the next `count` messages to `peer` by `exchanges` calls of exchange() on this
  // endpoint.
  void delay(int peer, int count, int exchanges) {
    const std::lock_guard lock(mutex_);
    delays_[peer] = {count, exchanges};
  }
  // Sends all held messages in order, and stops holding.
  void release(Deadline deadline) {
    {
      const std::lock_guard lock(mutex_);
      held_peers_.clear();
      delays_.clear();
      for (Held& held : held_) held.due = 0;
    }
    send_due(deadline);
  }
  // Makes every later call that names `peer` throw kPeerLost, which ends the group on this rank.
  void cut(int peer) {
    const std::lock_guard lock(mutex_);
    cut_.insert(peer);
  }
  Counts counts() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }
  Endpoint& inner() { return *inner_; }

  int rank() const override { return inner_->rank(); }
  int world() const override { return inner_->world(); }
  const char* name() const override { return inner_->name(); }
  std::uint32_t epoch() const override { return inner_->epoch(); }
  int await_any(Channel channel, Deadline deadline) override {
    return inner_->await_any(channel, deadline);
  }
  void fail(const Error& why) noexcept override { inner_->fail(why); }
  std::optional<Error> failure() const override { return inner_->failure(); }
  Deadline::Clock::time_point failed_at() const override { return inner_->failed_at(); }

  void exchange(Channel channel, std::span<const Send> sends, std::span<const Recv> recvs,
                Deadline deadline) override {
    refuse_cut(sends, recvs);
    const std::vector<Send> left = apply(channel, sends, recvs);
    send_due(deadline);
    inner_->exchange(channel, left, recvs, deadline);
  }

 private:
  struct Held {
    int peer;
    Channel channel;
    std::vector<std::byte> bytes;
    long due;  // exchanges to wait for; negative: until release()
  };

  void refuse_cut(std::span<const Send> sends, std::span<const Recv> recvs) {
    int peer = -1;
    {
      const std::lock_guard lock(mutex_);
      for (const Send& send : sends) peer = cut_.contains(send.peer) ? send.peer : peer;
      for (const Recv& recv : recvs) peer = cut_.contains(recv.peer) ? recv.peer : peer;
      if (peer < 0) return;
      ++counts_.refused;
    }
    const Error error(Errc::kPeerLost, "rank " + std::to_string(peer) + " is cut off by the test",
                      {"exchange", rank(), peer});
    inner_->fail(error);
    throw error;
  }

  // The messages to send now. A message behind a held one to the same peer is held too, to keep the
  // order.
  std::vector<Send> apply(Channel channel, std::span<const Send> sends,
                          std::span<const Recv> recvs) {
    const std::lock_guard lock(mutex_);
    ++counts_.exchanges;
    for (Held& held : held_) held.due -= held.due > 0 ? 1 : 0;
    counts_.receives += recvs.size();
    for (const Recv& recv : recvs) counts_.received_bytes += recv.bytes.size();
    std::vector<Send> left;
    for (const Send& send : sends) {
      ++counts_.sends;
      counts_.sent_bytes += send.bytes.size();
      if (drops_[send.peer] > 0) {
        --drops_[send.peer];
        ++counts_.dropped;
      } else if (const long due = due_of(send.peer); due != 0) {
        ++counts_.delayed;
        held_.push_back({send.peer, channel, {send.bytes.begin(), send.bytes.end()}, due});
      } else {
        left.push_back(send);
      }
    }
    return left;
  }

  long due_of(int peer) {
    if (held_peers_.contains(peer)) return -1;
    const auto delay = delays_.find(peer);
    if (delay != delays_.end() && delay->second.first > 0) {
      --delay->second.first;
      return delay->second.second;
    }
    for (const Held& held : held_) {
      if (held.peer == peer && held.due != 0) return held.due;
    }
    return 0;
  }

  void send_due(Deadline deadline) {
    std::deque<Held> due;
    {
      const std::lock_guard lock(mutex_);
      std::set<int> waiting;  // peers with an earlier message that is not due
      for (auto held = held_.begin(); held != held_.end();) {
        if (held->due != 0 || waiting.contains(held->peer)) {
          waiting.insert(held->peer);
          ++held;
          continue;
        }
        due.push_back(std::move(*held));
        held = held_.erase(held);
      }
    }
    for (const Held& held : due) inner_->send(held.peer, held.channel, held.bytes, deadline);
  }

  const std::unique_ptr<Endpoint> inner_;
  mutable std::mutex mutex_;  // guards all below
  std::map<int, int> drops_;
  std::map<int, std::pair<int, int>> delays_;
  std::set<int> held_peers_, cut_;
  std::deque<Held> held_;
  Counts counts_;
};

}  // namespace weft::net::internal

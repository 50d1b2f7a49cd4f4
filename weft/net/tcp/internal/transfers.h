// The transfers of a call of the TCP endpoint.
#pragma once

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "weft/net/tcp/internal/engine.h"

namespace weft::net::internal {

// Transfers of one call or flow. They do not move while they are pending.
struct Transfers {
  Operation operation;
  std::deque<Receipt> receipts;
  std::deque<Outgoing> outgoing;

  Receipt& add(const Recv& recv, std::uint32_t id, bool awaited) {
    return receipts.emplace_back(Receipt{recv, &operation, 0, false, id, awaited});
  }
  Outgoing& add(Channel channel, const Send& send, std::uint32_t id) {
    return outgoing.emplace_back(Outgoing{send, channel, &operation, id});
  }
  // The peer of the first transfer that is not complete, receives first. -1: there is none.
  int awaited() const {
    for (const Receipt& receipt : receipts) {
      if (!receipt.done) return receipt.recv.peer;
    }
    for (const Outgoing& message : outgoing) {
      if (!message.complete()) return message.send.peer;
    }
    return -1;
  }
  void forget_complete() {
    while (!receipts.empty() && receipts.front().done) receipts.pop_front();
    while (!outgoing.empty() && outgoing.front().complete()) outgoing.pop_front();
  }
};

// A cached Transfers object of an earlier call, so that small calls do not allocate.
class Lease {
 public:
  using Spare = std::vector<std::unique_ptr<Transfers>>;
  explicit Lease(Spare& spare) : spare_(spare) {
    if (spare.empty()) spare.push_back(std::make_unique<Transfers>());
    transfers_ = std::move(spare.back());
    spare.pop_back();
  }
  ~Lease() {
    transfers_->receipts.clear();
    transfers_->outgoing.clear();
    transfers_->operation = {};
    spare_.push_back(std::move(transfers_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Transfers& operator*() const { return *transfers_; }

 private:
  Spare& spare_;
  std::unique_ptr<Transfers> transfers_;
};

}  // namespace weft::net::internal

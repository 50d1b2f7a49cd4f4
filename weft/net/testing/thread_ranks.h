// Test helper: a minimal endpoint, and ranks as threads over it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <tuple>
#include <vector>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/net/endpoint.h"

namespace weft::net::internal {

// Minimal endpoint: mailboxes shared by all ranks.
class Mail {
 public:
  using Address = std::tuple<int, int, Channel>;  // from, to, channel

  void post(const Address& address, std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    boxes_[address].emplace_back(bytes.begin(), bytes.end());
    changed_.notify_all();
  }
  std::vector<std::byte> take(const Address& address, Deadline deadline) {
    std::unique_lock lock(mutex_);
    auto& box = boxes_[address];
    if (!changed_.wait_until(lock, deadline.when(), [&] { return !box.empty(); }))
      throw Error(Errc::kTimeout, "no message");
    std::vector<std::byte> bytes = std::move(box.front());
    box.pop_front();
    return bytes;
  }
  bool empty() {
    const std::lock_guard lock(mutex_);
    for (const auto& [address, box] : boxes_) {
      if (!box.empty()) return false;
    }
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Address, std::deque<std::vector<std::byte>>> boxes_;
};

class MailEndpoint : public Endpoint {
 public:
  MailEndpoint(Mail& mail, int rank, int world) : mail_(mail), rank_(rank), world_(world) {}
  int rank() const override { return rank_; }
  int world() const override { return world_; }
  const char* name() const override { return "mail"; }
  std::uint32_t epoch() const override { return 0; }
  void exchange(Channel channel, std::span<const Send> sends, std::span<const Recv> recvs,
                Deadline deadline) override {
    for (const Send& send : sends) mail_.post({rank_, send.peer, channel}, send.bytes);
    for (const Recv& recv : recvs) {
      const std::vector<std::byte> bytes = mail_.take({recv.peer, rank_, channel}, deadline);
      ASSERT_EQ(bytes.size(), recv.bytes.size());
      std::copy(bytes.begin(), bytes.end(), recv.bytes.begin());
    }
  }
  int await_any(Channel, Deadline) override { return -1; }
  void fail(const Error&) noexcept override {}
  std::optional<Error> failure() const override { return std::nullopt; }

 private:
  Mail& mail_;
  int rank_;
  int world_;
};

// Calls body(endpoint) on `world` threads. No message may remain undelivered.
inline void on_ranks(int world, const std::function<void(MailEndpoint&)>& body) {
  Mail mail;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      MailEndpoint endpoint(mail, rank, world);
      body(endpoint);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(mail.empty());
}

}  // namespace weft::net::internal

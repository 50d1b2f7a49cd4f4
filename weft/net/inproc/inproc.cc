#include "weft/net/inproc/inproc.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "weft/base/caught/caught.h"
#include "weft/net/channels.h"
#include "weft/net/internal/failure.h"
#include "weft/net/internal/mailbox.h"

namespace weft::net {
namespace {

using internal::Failure;
using internal::Mailbox;
using internal::Operation;
using internal::Piece;
using internal::Receipt;

constexpr std::chrono::milliseconds kAskAgain{5};

// State shared by the ranks. One mutex guards all of it; payloads are copied without the mutex.
struct Hub {
  struct Box {
    explicit Box(int rank, int world)
        : mailbox(rank, world, internal::kMailboxBytes), failure(rank), sent(world) {}
    Mailbox mailbox;
    Failure failure;
    // By peer: number of messages so far.
    std::vector<std::unordered_map<Channel, std::uint64_t>> sent;
    std::condition_variable changed;
    bool left = false;
  };

  std::mutex mutex;
  std::vector<std::unique_ptr<Box>> boxes;

  // An error in a call of `rank` ends the group. Every rank gets the same peer as the cause. The
  // lock is held.
  void fail_all(const Error& error, int rank) {
    for (int other = 0; other < static_cast<int>(boxes.size()); ++other) {
      boxes[other]->failure.latch(other == rank ? error : internal::seen_by_others(error, rank),
                                  false);
      boxes[other]->changed.notify_all();
    }
  }
};

class InprocEndpoint final : public Endpoint {
 public:
  InprocEndpoint(std::shared_ptr<Hub> hub, int rank, std::uint32_t epoch)
      : hub_(std::move(hub)), rank_(rank), epoch_(epoch), box_(*hub_->boxes[rank]) {}

  ~InprocEndpoint() override {
    const std::lock_guard lock(hub_->mutex);
    box_.left = true;
    for (auto& box : hub_->boxes) box->changed.notify_all();
  }

  int rank() const override { return rank_; }
  int world() const override { return static_cast<int>(hub_->boxes.size()); }
  const char* name() const override { return "inproc"; }
  std::uint32_t epoch() const override { return epoch_; }

  void exchange(Channel channel, std::span<const Send> sends, std::span<const Recv> recvs,
                Deadline deadline) override {
    internal::check_peers(world(), sends, recvs);
    Lock lock(hub_->mutex);
    box_.failure.refuse("exchange");
    count_sent(sends);
    transfer(lock, channel, sends, recvs, deadline);
  }

  int await_any(Channel channel, Deadline deadline) override {
    Lock lock(hub_->mutex);
    return find_any(lock, channel, deadline, nullptr);
  }

  int recv_any(Channel channel, std::span<std::byte> bytes, Deadline deadline,
               const std::function<bool(int peer)>& may) override {
    Lock lock(hub_->mutex);
    const int peer = find_any(lock, channel, deadline, may);
    const Recv recv{peer, bytes};
    transfer(lock, channel, {}, {&recv, 1}, deadline);
    return peer;
  }

  void wait_for(int peer, bool begin) override {
    const std::lock_guard lock(hub_->mutex);
    box_.mailbox.wait_for(peer, begin);
    for (int other = 0; begin && other < world(); ++other)
      if (peer < 0 || peer == other) hub_->boxes[other]->changed.notify_all();
  }

  void fail(const Error& why) noexcept override {
    const std::lock_guard lock(hub_->mutex);
    box_.failure.latch(why, true);
    box_.changed.notify_all();
  }
  void abort(const Error& why) noexcept override {
    const std::lock_guard lock(hub_->mutex);
    box_.failure.latch(why, true);
    hub_->fail_all(why, rank_);
  }

  std::optional<Error> failure() const override {
    const std::lock_guard lock(hub_->mutex);
    return box_.failure.error();
  }
  Deadline::Clock::time_point failed_at() const override {
    const std::lock_guard lock(hub_->mutex);
    return box_.failure.at();
  }

 private:
  using Lock = std::unique_lock<std::mutex>;

  void transfer(Lock& lock, Channel channel, std::span<const Send> sends,
                std::span<const Recv> recvs, Deadline deadline) {
    Operation operation;
    std::vector<Receipt> receipts;
    receipts.reserve(recvs.size());
    for (const Recv& recv : recvs) {
      receipts.push_back(
          {.recv = recv, .operation = &operation, .awaited = deadline.when() != kNever.when()});
    }
    try {
      for (Receipt& receipt : receipts) box_.mailbox.post(channel, receipt);
      if (!recvs.empty()) wake_senders(recvs);
      for (const Send& send : sends) deliver(lock, channel, send, deadline);
      wait_for(lock, receipts, channel, deadline);
    } catch (const std::exception& cause) {
      // The first error ends the group, so that no more data arrives in these buffers. Waits for
      // copies in progress.
      take_as_error(cause, [&](const Error& error) {
        if (!box_.failure.latched()) hub_->fail_all(error, rank_);
      });
      box_.changed.wait(lock, [&] { return operation.writers == 0; });
      throw;
    }
  }

  // Returns the sender of a message that has no receive yet.
  int find_any(Lock& lock, Channel channel, Deadline deadline,
               const std::function<bool(int peer)>& may) {
    box_.failure.refuse("await_any");
    while (true) {
      const int peer = box_.mailbox.any(channel, may);
      if (peer >= 0) return peer;
      if (box_.failure.latched()) box_.failure.end_pending("await_any");
      if (is_alone() && box_.mailbox.any(channel) < 0) internal::throw_alone(rank_);
      if (deadline.passed()) internal::throw_no_message(rank_, channel);
      // Nothing wakes this thread when `may` changes its answer.
      const bool is_held = may && box_.mailbox.any(channel) >= 0;
      const auto soon = Deadline::in(kAskAgain).when();
      box_.changed.wait_until(lock, is_held ? std::min(deadline.when(), soon) : deadline.when());
    }
  }

  // True if no other rank of a group of several can send any more.
  bool is_alone() const {
    for (int peer = 0; peer < world(); ++peer)
      if (peer != rank_ && !hub_->boxes[peer]->left) return false;
    return world() > 1;
  }

  // A sender may be waiting for the receives posted here.
  void wake_senders(std::span<const Recv> recvs) {
    for (const Recv& recv : recvs) hub_->boxes[recv.peer]->changed.notify_all();
  }

  [[noreturn]] void throw_timeout(Channel channel, int peer, const char* what) const {
    throw Error(Errc::kTimeout,
                std::string(what) + " rank " + std::to_string(peer) + on_channel(channel) +
                    " was not complete before the deadline",
                {"exchange", rank_, peer});
  }

  void deliver(Lock& lock, Channel channel, const Send& send, Deadline deadline) {
    Hub::Box& to = *hub_->boxes[send.peer];
    const Piece piece{rank_, channel,           box_.sent[send.peer][channel]++, send.bytes.size(),
                      0,     send.bytes.size(), internal::label_of(send)};
    while (true) {
      if (box_.failure.latched()) box_.failure.end_pending("exchange");
      if (to.left) internal::throw_left({"exchange", rank_, send.peer});
      if (to.mailbox.has_room(piece)) break;
      if (deadline.passed()) throw_timeout(channel, send.peer, "the send to");
      box_.changed.wait_until(lock, deadline.when());
    }
    // A receiver that has failed accepts no more messages. It reports the cause on request.
    if (to.failure.latched()) return;
    std::byte* place = nullptr;
    try {
      place = to.mailbox.begin(piece);
    } catch (const std::exception& cause) {
      // The error of the receiver. It ends the receiver's call and, through the group, this one.
      take_as_error(cause, [&](const Error& error) { hub_->fail_all(error, send.peer); });
      box_.failure.end_pending("exchange");
    }
    Operation* reader = to.mailbox.target(piece);
    if (reader != nullptr) ++reader->writers;
    lock.unlock();
    if (!send.bytes.empty()) std::memcpy(place, send.bytes.data(), send.bytes.size());
    lock.lock();
    if (reader != nullptr) --reader->writers;
    if (!to.failure.latched()) to.mailbox.end(piece);  // otherwise its receives may be gone
    to.changed.notify_all();
  }

  void wait_for(Lock& lock, const std::vector<Receipt>& receipts, Channel channel,
                Deadline deadline) {
    if (receipts.empty()) return;
    const Operation& operation = *receipts.front().operation;
    while (operation.pending > 0) {
      if (box_.failure.latched()) box_.failure.end_pending("exchange");
      for (const Receipt& receipt : receipts) {
        if (receipt.done || operation.writers > 0) continue;
        if (hub_->boxes[receipt.recv.peer]->left)
          internal::throw_left({"exchange", rank_, receipt.recv.peer});
        if (deadline.passed()) throw_timeout(channel, receipt.recv.peer, "the receive from");
      }
      box_.changed.wait_until(lock, deadline.when());
    }
  }

  const std::shared_ptr<Hub> hub_;
  const int rank_;
  const std::uint32_t epoch_;
  Hub::Box& box_;
};

}  // namespace

std::vector<std::unique_ptr<Endpoint>> make_inproc(int world, std::uint32_t epoch) {
  WEFT_REQUIRE(world >= 1, "a group must have at least one rank, not " + std::to_string(world));
  auto hub = std::make_shared<Hub>();
  for (int rank = 0; rank < world; ++rank)
    hub->boxes.push_back(std::make_unique<Hub::Box>(rank, world));
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  for (int rank = 0; rank < world; ++rank)
    endpoints.push_back(std::make_unique<InprocEndpoint>(hub, rank, epoch));
  return endpoints;
}

}  // namespace weft::net

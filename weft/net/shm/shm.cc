// All work is done by threads that wait. progress() moves what it can for all calls of the rank:
// queued sends into the rings, and pieces from the rings into the mailbox. While no call of a rank
// waits, the rings to it fill up, and then the sends of its peers wait.
//
// A call first tries the short way: send_now() writes into the ring, and receive_now() reads a
// whole message from the ring into the caller's buffer. Both keep the order of messages: a send
// goes this way only if none is queued before it, a receive only if its channel has nothing open in
// the mailbox.
//
// A wait repeats: progress, else spin, else look around (failures, lost peers, the deadline) and
// sleep. Before it sleeps, it announces it and makes progress once more, so no message is missed in
// between.
//
// mutex_ guards all but the region, whose values are atomic or have one writer. A spinning thread
// keeps the lock, since each pass needs it. Threads that want it count themselves in in_line_, and
// the spinning thread lets them through (give_way()). A sleeping thread holds no lock.
//
// What a peer sent before it died or left still counts. So a loss ends the group only when one more
// pass has found nothing.
#include "weft/net/shm/shm.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <string>

#include "weft/base/caught/caught.h"
#include "weft/net/internal/failure.h"
#include "weft/net/shm/internal/shm_call.h"
#include "weft/net/shm/internal/shm_region.h"
#include "weft/observe/position/position.h"

namespace weft::net {
namespace {

using namespace std::chrono_literals;
using internal::Operation;
using internal::Piece;
using internal::Receipt;
using internal::ShmOutgoing;
using Call = internal::ShmCall;

constexpr auto kShmSlice = 20ms;
// With one processor per rank: idle passes before sleeping, about 10 us, less than the cost of a
// wake-up.
constexpr int kSpins = 300;
// Otherwise: yields first, so that ranks with work can run.
constexpr int kYields = 8;
// Busy passes between two checks of the deadline and of failures.
constexpr int kBusyPasses = 256;

class ShmEndpoint final : public Endpoint {
 public:
  explicit ShmEndpoint(ShmOptions options)
      : options_(std::move(options)),
        region_(options_.region, options_.world, options_.ring_bytes),
        peers_(static_cast<std::size_t>(options_.world)),
        mailbox_(options_.rank, options_.world, internal::kMailboxBytes),
        failure_(options_.rank) {
    region_.sit_down(rank());
    crowd_ = region_.crowd();
    for (int peer = 0; peer < world(); ++peer) {
      if (peer == rank()) continue;
      peers_[static_cast<std::size_t>(peer)].out = internal::RingWriter(view(rank(), peer, peer));
      peers_[static_cast<std::size_t>(peer)].in = internal::RingReader(view(peer, rank(), peer));
    }
  }

  ~ShmEndpoint() override {
    region_.leave(rank());
    for (int peer = 0; peer < world(); ++peer) region_.wake(peer);
  }

  int rank() const override { return options_.rank; }
  int world() const override { return options_.world; }
  const char* name() const override { return "shm"; }
  std::uint32_t epoch() const override { return options_.epoch; }

  void exchange(Channel channel, std::span<const Send> sends, std::span<const Recv> recvs,
                Deadline deadline) override {
    internal::check_peers(world(), sends, recvs);
    Lock lock = enter();
    adopt_failure();
    failure_.refuse("exchange");
    count_sent(sends);
    try {
      const auto rest = sends.subspan(send_now(channel, sends));
      if (rest.empty() && (recvs.empty() || (recvs.size() == 1 && receive_now(channel, recvs[0]))))
        return;
      transfer(lock, {"exchange", deadline, channel, {}, {}}, rest, recvs);
    } catch (const std::exception& error) {
      end_group(error);  // stops all transfers, so that no pointer into this call remains
      throw;
    }
  }

  int await_any(Channel channel, Deadline deadline) override {
    Lock lock = enter();
    return find_any(lock, channel, deadline, nullptr);
  }

  int recv_any(Channel channel, std::span<std::byte> bytes, Deadline deadline,
               const std::function<bool(int peer)>& may) override {
    Lock lock = enter();
    const int peer = find_any(lock, channel, deadline, may);
    try {
      const Recv recv{peer, bytes};
      transfer(lock, {"exchange", deadline, channel, {}, {}}, {}, {&recv, 1});
    } catch (const std::exception& error) {
      end_group(error);
      throw;
    }
    return peer;
  }

  void wait_for(int peer, bool begin) override {
    const Lock lock = enter();
    mailbox_.wait_for(peer, begin);
  }

  void fail(const Error& why) noexcept override {
    const Lock lock = enter();
    failure_.latch(why, true);
    region_.wake(rank());
  }

  void abort(const Error& why) noexcept override {
    const Lock lock = enter();
    failure_.latch(why, true);
    const Error told(Errc::kAborted, "rank " + std::to_string(rank()) + " failed: " + why.what(),
                     {"", rank(), rank()});
    region_.publish_failure(told, rank());
  }

  std::optional<Error> failure() const override {
    const std::lock_guard lock(mutex_);
    return failure_.error();
  }
  Deadline::Clock::time_point failed_at() const override {
    const std::lock_guard lock(mutex_);
    return failure_.at();
  }

 private:
  using Lock = std::unique_lock<std::mutex>;

  struct Peer {
    internal::RingWriter out;
    internal::RingReader in;
    std::deque<ShmOutgoing*> queue;  // in the order of their messages
    internal::SentCounts sent;
  };

  internal::RingView view(int from, int to, int peer) const {
    internal::RingView ring = region_.ring(from, to);
    ring.epoch = options_.epoch;
    ring.peer = peer;
    return ring;
  }

  // A spinning thread holds the lock and yields it to waiting threads.
  Lock enter() {
    Lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) reenter(lock);
    return lock;
  }
  void reenter(Lock& lock) {
    in_line_.fetch_add(1);
    lock.lock();
    in_line_.fetch_sub(1);
  }

  // Returns the sender of a message that has no receive yet.
  int find_any(Lock& lock, Channel channel, Deadline deadline,
               const std::function<bool(int peer)>& may) {
    adopt_failure();
    failure_.refuse("await_any");
    int peer = -1;
    wait(lock, {"await_any", deadline, channel, {}, {}},
         [&] { return (peer = mailbox_.any(channel, may)) >= 0; });
    return peer;
  }

  // Fast path of most small messages: directly into the ring and out of it. The lock is held.

  // Sends what can be sent without waiting. Returns the number of completed sends.
  std::size_t send_now(Channel channel, std::span<const Send> sends) {
    std::size_t sent = 0;
    for (; sent < sends.size(); ++sent) {
      const Send& send = sends[sent];
      Peer& peer = peers_[static_cast<std::size_t>(send.peer)];
      const std::size_t size = send.bytes.size();
      if (send.peer == rank() || !peer.queue.empty() || !peer.out.is_one_piece(size)) break;
      std::uint64_t& count = peer.sent.of(channel);
      if (!peer.out.push({rank(), channel, count, size, 0, size}, send.bytes.data())) break;
      ++count;
      region_.wake(send.peer);
    }
    return sent;
  }

  // Spins for a complete message that is next from its peer. Otherwise leaves it to transfer().
  bool receive_now(Channel channel, const Recv& recv) {
    if (recv.peer == rank() || !mailbox_.is_clear(recv.peer, channel)) return false;
    internal::RingReader& ring = peers_[static_cast<std::size_t>(recv.peer)].in;
    const Piece* piece = ring.front();
    for (int idle = 0; piece == nullptr; piece = ring.front()) {
      if (crowd_.oversubscribed || ++idle > kSpins || in_line_.load(std::memory_order_relaxed) > 0)
        return false;
      pause();
    }
    if (piece->channel != channel || !mailbox_.take_whole(*piece, recv.bytes.size())) return false;
    if (ring.take(recv.bytes.data())) region_.wake(recv.peer);
    return true;
  }

  // Progress and waiting; the lock is held on entry and exit.

  void transfer(Lock& lock, Call call, std::span<const Send> sends, std::span<const Recv> recvs) {
    Operation operation;
    std::vector<Receipt> receipts;
    std::vector<ShmOutgoing> outgoing;
    receipts.reserve(recvs.size());
    outgoing.reserve(sends.size());
    for (const Recv& recv : recvs)
      mailbox_.post(call.channel, receipts.emplace_back(
                                      Receipt{.recv = recv,
                                              .operation = &operation,
                                              .awaited = call.deadline.when() != kNever.when()}));
    for (const Send& send : sends) {
      Peer& peer = peers_[static_cast<std::size_t>(send.peer)];
      peer.queue.push_back(&outgoing.emplace_back(
          ShmOutgoing{send, call.channel, peer.sent.of(call.channel)++, 0, &operation}));
      ++operation.pending;
    }
    call.receipts = receipts;
    call.sends = outgoing;
    wait(lock, call, [&] { return operation.pending == 0; });
  }

  template <class Done>
  void wait(Lock& lock, const Call& call, Done done) {
    int idle = 0;
    int busy = 0;
    std::optional<observe::WaitScope> shown;
    while (!done()) {
      if (failure_.latched()) failure_.end_pending(call.name);
      if (progress()) {
        idle = 0;
        if (++busy % kBusyPasses == 0 && !done()) look_around(call);
      } else if (!spin(++idle)) {
        if (!shown) shown.emplace(call.name, -1, std::chrono::nanoseconds(kShmSlice).count());
        shown->set_peer(job_rank(call.awaited()));
        look_around(call);
        if (!failure_.latched()) sleep(lock, call.deadline);
      }
      if (in_line_.load() > 0) give_way(lock);
    }
  }

  void give_way(Lock& lock) {
    lock.unlock();
    sched_yield();
    reenter(lock);
  }

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  bool spin(int idle) {
    if (!crowd_.everybody) crowd_ = region_.crowd();
    if (crowd_.oversubscribed) {
      if (idle <= kYields) sched_yield();
      return idle <= kYields;
    }
    pause();
    return idle <= kSpins;
  }

  void sleep(Lock& lock, Deadline deadline) {
    const std::uint32_t ticket = region_.begin_sleep(rank());
    if (!progress()) {
      lock.unlock();
      region_.sleep(rank(), ticket,
                    std::min<std::chrono::nanoseconds>(kShmSlice, deadline.left() + 1us));
      reenter(lock);
    }
    region_.end_sleep(rank());
  }

  // Makes progress. An error ends the group, since it may belong to any pending call.
  bool progress() {
    if (failure_.latched()) return false;
    try {
      bool moved = false;
      for (int peer = 0; peer < world(); ++peer) {
        if (peer == rank()) {
          moved |= deliver_to_self();
        } else {
          moved |= push(peer);
          moved |= pull(peer);
        }
      }
      // Other threads of this rank may wait for what has moved.
      if (moved) region_.wake(rank());
      return moved;
    } catch (const std::exception& error) {
      end_group(error);
      return true;
    }
  }

  static void advance(std::deque<ShmOutgoing*>& queue, std::size_t bytes) {
    ShmOutgoing& send = *queue.front();
    send.offset += bytes;
    if (send.offset < send.send.bytes.size()) return;
    send.done = true;
    --send.operation->pending;
    queue.pop_front();
  }

  bool push(int peer) {
    Peer& to = peers_[static_cast<std::size_t>(peer)];
    bool moved = false;
    while (!to.queue.empty()) {
      const ShmOutgoing& send = *to.queue.front();
      const auto written = to.out.push(send.rest(rank()), send.send.bytes.data() + send.offset);
      if (!written) break;
      advance(to.queue, *written);
      moved = true;
      region_.wake(peer);
    }
    return moved;
  }

  bool pull(int peer) {
    internal::RingReader& ring = peers_[static_cast<std::size_t>(peer)].in;
    bool moved = false;
    for (const Piece* piece = ring.front(); piece != nullptr && mailbox_.has_room(*piece);
         piece = ring.front()) {
      const Piece taken = *piece;
      if (ring.take(mailbox_.begin(taken))) region_.wake(peer);
      mailbox_.end(taken);
      moved = true;
    }
    return moved;
  }

  bool deliver_to_self() {
    auto& queue = peers_[static_cast<std::size_t>(rank())].queue;
    bool moved = false;
    while (!queue.empty()) {
      const ShmOutgoing& send = *queue.front();
      const Piece piece = send.rest(rank());
      if (!mailbox_.has_room(piece)) break;
      std::byte* place = mailbox_.begin(piece);
      if (piece.length > 0) std::memcpy(place, send.send.bytes.data(), piece.length);
      mailbox_.end(piece);
      advance(queue, piece.length);
      moved = true;
    }
    return moved;
  }

  // Failures.

  void adopt_failure() {
    if (failure_.latched() || !region_.failed()) return;
    if (const auto shared = region_.failure()) failure_.latch(*shared, false);
  }

  void end_group(const std::exception& cause) {
    take_as_error(cause,
                  [&](const Error& error) {
                    if (failure_.latch(error, false))
                      region_.publish_failure(internal::seen_by_others(error, rank()), rank());
                  },
                  {"exchange", rank()});
  }

  void look_around(const Call& call) {
    adopt_failure();
    if (!failure_.latched() && options_.check) check_group(call.name);
    if (!failure_.latched()) ask_for_lost_peer(call.name);
    if (failure_.latched()) return;  // wait() throws the failure
    look_for_departed(call);
    if (call.deadline.passed()) call.throw_timeout(rank());
  }

  void check_group(const char* operation) {
    try {
      options_.check(operation);
    } catch (const Error& error) {
      if (progress()) return;  // what was sent before the failure counts
      failure_.latch(error, false);
    }
  }

  void ask_for_lost_peer(const char* operation) {
    const auto now = Deadline::Clock::now();
    if (!options_.lost_peer || now - asked_ < kShmSlice) return;
    asked_ = now;
    const auto lost = options_.lost_peer();
    // A process that ended after leaving in order is not lost. Ranks that still need it are handled
    // in look_for_departed().
    if (!lost || *lost < 0 || *lost >= world() || region_.left(*lost)) return;
    if (progress()) return;  // what it sent before its death counts
    end_group(Error(Errc::kPeerLost, "rank " + std::to_string(*lost) + " has died",
                    {operation, rank(), *lost}));
  }

  void look_for_departed(const Call& call) {
    const auto check = [&](int peer, bool nothing_more) {
      if (peer == rank() || !region_.left(peer) || !nothing_more) return;
      internal::throw_left({call.name, rank(), peer});
    };
    if (call.receipts.empty() && call.sends.empty() && is_alone())
      internal::throw_alone(rank());  // in find_any()
    for (const Receipt& receipt : call.receipts) {
      // The peer left before this reads its ring, so an empty ring stays empty.
      if (!receipt.done && region_.left(receipt.recv.peer) && receipt.recv.peer != rank()) {
        check(receipt.recv.peer, peers_[static_cast<std::size_t>(receipt.recv.peer)].in.empty());
      }
    }
    for (const ShmOutgoing& send : call.sends) {
      if (!send.done) check(send.send.peer, true);
    }
  }

  // True if no other rank of a group of several has sent or can send more than what is in the
  // mailbox.
  bool is_alone() {
    for (int peer = 0; peer < world(); ++peer) {
      if (peer == rank()) continue;
      // The peer left before this reads its ring, so an empty ring stays empty.
      if (!region_.left(peer) || !peers_[static_cast<std::size_t>(peer)].in.empty()) return false;
    }
    return world() > 1;
  }

  const ShmOptions options_;
  internal::ShmRegion region_;
  std::atomic<int> in_line_{0};  // threads that wait for the lock

  mutable std::mutex mutex_;  // guards the rest
  std::vector<Peer> peers_;
  internal::Mailbox mailbox_;
  internal::Failure failure_;
  internal::ShmRegion::Crowd crowd_;
  Deadline::Clock::time_point asked_{};
};

}  // namespace

std::size_t shm_region_bytes(int world, std::size_t ring_bytes) {
  return internal::ShmRegion::bytes(world, ring_bytes);
}

std::unique_ptr<Endpoint> make_shm(ShmOptions options) {
  WEFT_REQUIRE(options.rank >= 0 && options.rank < options.world,
               "rank " + std::to_string(options.rank) + " is not in a group of " +
                   std::to_string(options.world));
  return std::make_unique<ShmEndpoint>(std::move(options));
}

}  // namespace weft::net

// The endpoint: threads of the program make calls, a watcher thread keeps the group alive, and one
// mutex guards the engine (internal/engine.h), which never waits.
//
// Progress: a call starts its transfers in the engine, and then waits until they are complete. One
// of the waiting threads polls for all of them (`polling_`). It lets go of the mutex only inside
// epoll_wait, where it touches nothing else. The others sleep on `changed_`:
//
//   call A: start ─ poll ─ handle the events of all calls ─ notify ─ done, or poll again
//   call B: start ─ wake the poller ─ sleep on changed_ ──── look ── done, or poll itself
//
// A new transfer wakes the poller, because it may have completed what the poller waits for: a
// receive can free a stream that had paused.
//
// The watcher ticks every 100 ms: heartbeats, silent peers, labels of long calls. It polls if no
// thread does. So a rank that computes notices a lost peer, and takes in what arrives.
//
// Nothing is sent again: TCP does that. Each frame has a checksum and a sequence number
// (frame_stream.h). A frame that is damaged or missing ends the group with kCorrupt.
//
// The end: the first error is kept, the peers are told by an abort frame, and the engine stops, all
// under the mutex. From then on no thread touches memory of a call, so each call may throw. The
// watcher then only sends the abort frames that sockets have not accepted yet.
#include "weft/net/tcp/tcp.h"

#include <sched.h>
#include <sys/epoll.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "weft/base/caught/caught.h"
#include "weft/net/internal/failure.h"
#include "weft/net/internal/open_files.h"
#include "weft/net/tcp/internal/engine.h"
#include "weft/net/tcp/internal/formation.h"
#include "weft/net/tcp/internal/transfers.h"
#include "weft/observe/position/position.h"

namespace weft::net {
namespace {

using namespace std::chrono_literals;
using internal::Engine;
using internal::Lease;
using internal::Outgoing;
using internal::Receipt;
using internal::Transfers;

constexpr auto kTick = 100ms;
constexpr auto kLinger = 500ms;
constexpr auto kAskAgain = 5ms;
constexpr int kEvents = 64;

class TcpEndpoint final : public Endpoint {
 public:
  TcpEndpoint(const TcpOptions& options, internal::Mesh mesh)
      : rank_(options.rank),
        epoch_(options.epoch),
        spin_(options.spin),
        engine_({options.rank, options.epoch, options.room, options.peer_timeout,
                 options.congestion, options.zero_copy, options.found_lost},
                std::move(mesh)),
        failure_(options.rank),
        watcher_([this] { watch(); }) {}

  ~TcpEndpoint() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    closing_changed_.notify_all();
    watcher_.join();
    const std::lock_guard lock(mutex_);
    try {
      if (failed_) engine_.tell({Errc::kAborted, -1, failed_->what(), false});
      engine_.leave(Deadline::in(kLinger));
    } catch (const std::exception&) {
      // Peers see closed connections without a goodbye.
    }
  }

  int rank() const override { return rank_; }
  int world() const override { return engine_.world(); }
  const char* name() const override { return "tcp"; }
  std::uint32_t epoch() const override { return epoch_; }

  void exchange(Channel channel, std::span<const Send> sends, std::span<const Recv> recvs,
                Deadline deadline) override {
    internal::check_peers(world(), sends, recvs);
    Lock lock(mutex_);
    failure_.refuse("exchange");
    transfer(lock, channel, sends, recvs, deadline);
  }

  std::unique_ptr<Flow> flow(Channel of) override { return std::make_unique<TcpFlow>(*this, of); }

  bool begin_call(Channel channel, std::uint64_t number, const Label& label) override {
    const Lock lock(mutex_);
    failure_.refuse_call("call");
    guarded([&] { engine_.begin_call(channel, number, label); });
    failure_.refuse_call("call");
    return true;
  }

  int await_any(Channel channel, Deadline deadline) override {
    Lock lock(mutex_);
    return find_any(lock, channel, deadline, nullptr);
  }

  int recv_any(Channel channel, std::span<std::byte> bytes, Deadline deadline,
               const std::function<bool(int peer)>& may) override {
    Lock lock(mutex_);
    const int peer = find_any(lock, channel, deadline, may);
    const Recv recv{peer, bytes};
    transfer(lock, channel, {}, {&recv, 1}, deadline);
    return peer;
  }

  void wait_for(int peer, bool begin) override {
    const Lock lock(mutex_);
    if (failure_.latched()) return;
    bool resumed = false;
    guarded([&] { resumed = engine_.wait_for(peer, begin); });
    if (!resumed) return;
    engine_.wake();
    changed_.notify_all();
  }

  void fail(const Error& why) noexcept override {
    const std::lock_guard lock(mutex_);
    keep_cause(why);
    if (failure_.latch(why, true)) wake_all();
  }

  void abort(const Error& why) noexcept override {
    const std::lock_guard lock(mutex_);
    keep_cause(why);
    const bool is_first = failure_.latch(why, true);
    if (!told_) tell({Errc::kAborted, -1, why.what(), false});
    if (is_first) wake_all();
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

  class TcpFlow final : public Flow {
   public:
    TcpFlow(TcpEndpoint& endpoint, Channel channel) : endpoint_(endpoint), channel_(channel) {
      transfers_.operation.collects = true;
    }
    // Only missing memory for the error could throw, and ends the process.
    // NOLINTNEXTLINE(bugprone-exception-escape)
    ~TcpFlow() override {
      const Lock lock(endpoint_.mutex_);
      if (transfers_.operation.pending == 0) return;
      const Error why(Errc::kAborted, "pending transfers were abandoned",
                      {"flow", endpoint_.rank_});
      if (!endpoint_.failure_.latch(why, false)) return;
      endpoint_.tell({Errc::kAborted, -1, why.what(), false});
      endpoint_.wake_all();
    }
    void send(const Send& send, std::uint32_t id) override {
      begin({&send, 1}, {},
            [&](Engine& engine) { engine.send(transfers_.add(channel_, send, id)); });
    }
    void recv(const Recv& recv, std::uint32_t id) override {
      begin({}, {&recv, 1},
            [&](Engine& engine) { engine.post(channel_, transfers_.add(recv, id, true)); });
    }
    void wait(std::vector<std::uint32_t>& done, Deadline deadline) override {
      Lock lock(endpoint_.mutex_);
      const auto must_wait = [&] {
        return transfers_.operation.done.empty() && transfers_.operation.pending > 0;
      };
      if (must_wait()) {
        observe::WaitScope shown("exchange", -1);
        while (must_wait()) endpoint_.wait_on(lock, channel_, transfers_, deadline, shown);
      }
      hand_over(done);
    }
    void poll(std::vector<std::uint32_t>& done) override {
      const Lock lock(endpoint_.mutex_);
      if (transfers_.operation.pending > 0 && !endpoint_.polling_) endpoint_.poll_once();
      if (endpoint_.failure_.latched()) endpoint_.failure_.end_pending("exchange");
      hand_over(done);
    }

   private:
    template <typename F>
    void begin(std::span<const Send> sends, std::span<const Recv> recvs, const F& body) {
      internal::check_peers(endpoint_.world(), sends, recvs);
      const Lock lock(endpoint_.mutex_);
      if (endpoint_.failure_.latched()) endpoint_.failure_.end_pending("exchange");
      endpoint_.count_sent(sends);
      endpoint_.guarded([&] { body(endpoint_.engine_); });
      if (endpoint_.failure_.latched()) endpoint_.failure_.end_pending("exchange");
      if (endpoint_.polling_) endpoint_.engine_.wake();
    }
    void hand_over(std::vector<std::uint32_t>& done) {
      auto& mine = transfers_.operation.done;
      done.insert(done.end(), mine.begin(), mine.end());
      mine.clear();
      transfers_.forget_complete();
    }

    TcpEndpoint& endpoint_;
    const Channel channel_;
    Transfers transfers_;  // guarded by the mutex of the endpoint
  };

  void transfer(Lock& lock, Channel channel, std::span<const Send> sends,
                std::span<const Recv> recvs, Deadline deadline) {
    count_sent(sends);
    const Lease lease(spare_);  // destroyed before `lock`, so it is returned under the lock
    Transfers& transfers = *lease;
    const bool is_awaited = deadline.when() != kNever.when();
    guarded([&] {
      for (const Recv& recv : recvs) engine_.post(channel, transfers.add(recv, 0, is_awaited));
      for (const Send& send : sends) engine_.send(transfers.add(channel, send, 0));
    });
    if (failure_.latched()) failure_.end_pending("exchange");
    // Not needed for the new transfers themselves: epoll sees a change of its set at once.
    if (polling_) engine_.wake();  // the polling thread may wait for an effect of these transfers
    if (transfers.operation.pending == 0) return;
    observe::WaitScope shown("exchange", -1);
    while (transfers.operation.pending > 0) wait_on(lock, channel, transfers, deadline, shown);
  }

  // Returns the sender of a message that has no receive yet.
  int find_any(Lock& lock, Channel channel, Deadline deadline,
               const std::function<bool(int peer)>& may) {
    failure_.refuse("await_any");
    const observe::WaitScope shown("await_any", -1);
    while (true) {
      const int peer = engine_.any(channel, may);
      if (peer >= 0) return peer;
      guarded([&] { check_company(); });
      if (failure_.latched()) failure_.end_pending("await_any");
      if (deadline.passed()) internal::throw_no_message(rank_, channel);
      // Nothing wakes this thread when `may` changes its answer.
      const bool is_held = may && engine_.any(channel, nullptr) >= 0;
      progress(lock, is_held
                         ? Deadline::at(std::min(deadline.when(), Deadline::in(kAskAgain).when()))
                         : deadline);
    }
  }

  // Runs a function whose errors end the group. The lock is held.
  template <typename F>
  void guarded(const F& body) {
    try {
      body();
    } catch (const std::exception& caught) {  // also if memory has run out, amid a transfer
      take_as_error(caught, [&](const Error& error) { end_group(error); }, {"exchange", rank_});
    }
  }

  void end_group(const Error& error) {
    if (!failure_.latch(error, false)) return;
    if (const auto told = internal::abort_of(error, *failure_.error())) tell(*told);
    told_ = true;  // another rank gave this one up: it has told the others
    wake_all();
  }

  // The cause may be found only after the group has failed. The destructor tells the peers.
  void keep_cause(const Error& why) {
    if (!failed_ && (why.code() == Errc::kCorrupt || why.code() == Errc::kInternal ||
                     why.code() == Errc::kTimeout))
      failed_ = why;
  }

  // The watcher sends what the sockets do not accept now.
  void tell(const internal::Abort& abort) noexcept {
    told_ = true;
    try {
      engine_.tell(abort);
    } catch (const std::exception&) {
      // A peer that is not told notices that this rank is silent.
    }
  }

  void wake_all() {
    engine_.stop();
    engine_.wake();
    changed_.notify_all();
  }

  // One step of waiting for `transfers`. Throws if the group has ended; then no buffer is touched
  // any more.
  void wait_on(Lock& lock, Channel channel, const Transfers& transfers, Deadline deadline,
               observe::WaitScope& shown) {
    guarded([&] { check_left(transfers); });
    if (failure_.latched()) failure_.end_pending("exchange");
    if (deadline.passed()) time_out(channel, transfers);
    shown.set_peer(job_rank(transfers.awaited()));
    progress(lock, deadline);
  }

  // One thread polls for all. The others sleep until it has made progress or has left.
  void progress(Lock& lock, Deadline deadline) {
    if (polling_) {
      changed_.wait_until(lock, deadline.when());
      return;
    }
    polling_ = true;
    lock.unlock();
    epoll_event events[kEvents];
    const int count = poll(events, deadline);
    lock.lock();
    polling_ = false;
    handle(events, count);
  }

  void handle(const epoll_event* events, int count) {
    guarded([&] {
      for (int i = 0; i < count; ++i) engine_.handle(events[i].data.u64, events[i].events);
    });
    changed_.notify_all();
  }

  // Makes progress. The lock is held, and no thread polls.
  void poll_once() {
    epoll_event events[kEvents];
    handle(events, ::epoll_wait(engine_.epoll_fd(), events, kEvents, 0));
  }

  // Polls for a while, yielding, before it sleeps, so that an answer in transfer needs no wake-up.
  int poll(epoll_event* events, Deadline deadline) const {
    const auto until = Deadline::Clock::now() + spin_;
    do {
      const int count = ::epoll_wait(engine_.epoll_fd(), events, kEvents, 0);
      if (count != 0) return count;
      ::sched_yield();
    } while (Deadline::Clock::now() < until && !deadline.passed());
    return ::epoll_wait(engine_.epoll_fd(), events, kEvents, deadline.left_ms());
  }

  void watch() {
    Lock lock(mutex_);
    while (!closing_changed_.wait_for(lock, kTick, [&] { return closing_; })) {
      if (failure_.latched()) {
        tell_rest();
        continue;
      }
      if (!polling_) poll_once();
      guarded([&] { engine_.tick(Engine::Clock::now()); });
    }
  }

  void tell_rest() noexcept {
    try {
      engine_.tell_rest();
    } catch (const std::exception&) {
      // As in tell().
    }
  }

  void check_company() const {
    for (int peer = 0; peer < world(); ++peer) {
      if (peer == rank_ ? world() == 1 : !engine_.has_left(peer)) return;
    }
    internal::throw_alone(rank_);
  }

  void check_left(const Transfers& transfers) const {
    internal::check_left(rank_, transfers.receipts,
                         [&](int peer) { return engine_.has_left(peer); });
  }

  [[noreturn]] void time_out(Channel channel, const Transfers& transfers) {
    const Error error =
        internal::exchange_timeout(rank_, channel, transfers.receipts, transfers.outgoing);
    end_group(error);
    throw error;
  }

  const int rank_;
  const std::uint32_t epoch_;
  const std::chrono::microseconds spin_;

  mutable std::mutex mutex_;
  std::condition_variable changed_, closing_changed_;
  Engine engine_;                // guarded by mutex_, except epoll_fd() and wake()
  internal::Failure failure_;    // guarded by mutex_, as is failed_
  std::optional<Error> failed_;  // argument of fail(); the destructor sends it to the peers
  bool told_ = false;            // guarded by mutex_: the other ranks know of the failure
  Lease::Spare spare_;           // guarded by mutex_
  bool polling_ = false;         // guarded by mutex_: a thread is in poll()
  bool closing_ = false;         // guarded by mutex_
  std::thread watcher_;
};

// Beside the connections: the listener, wake-ups, and connections of strangers.
constexpr int kOtherFiles = 32;

void check(const TcpOptions& o) {
  WEFT_REQUIRE(
      o.world >= 1 && o.rank >= 0 && o.rank < o.world,
      "rank " + std::to_string(o.rank) + " is not a rank of a group of " + std::to_string(o.world));
  WEFT_REQUIRE(o.streams >= 1 && o.streams <= 16,
               "streams must be 1 to 16, not " + std::to_string(o.streams));
  WEFT_REQUIRE(o.port >= 0 && o.port < 65536,
               "port must be 0 to 65535, not " + std::to_string(o.port));
  WEFT_REQUIRE(o.exchange, "connect_tcp needs an exchange of addresses");
}

}  // namespace

std::unique_ptr<Endpoint> connect_tcp(const TcpOptions& options) {
  check(options);
  const Deadline deadline = Deadline::in(options.connect_timeout);
  internal::allow_open_files(
      static_cast<std::size_t>((options.world - 1) * (options.streams + 1) + kOtherFiles));
  const std::string host = internal::resolve_interface(options.interface);
  const bool wildcard = internal::is_wildcard(host);
  WEFT_REQUIRE(!wildcard || options.secret, "to listen on every interface (" + host +
                                                ") needs a secret; set one, or set an interface");
  WEFT_REQUIRE(
      !wildcard || !options.advertise.empty(),
      "to listen on every interface (" + host + ") needs `advertise`, the host name for peers");
  internal::Fd listener = internal::listen_on(host, options.port);
  const std::string mine = internal::join_address(
      options.advertise.empty() ? host : options.advertise, internal::bound_port(listener));
  internal::FormationOptions formation{{options.job, options.rank, options.world,
                                        options.streams + 1, options.epoch, options.secret},
                                       options.exchange(mine)};
  WEFT_REQUIRE(static_cast<int>(formation.addresses.size()) == options.world,
               "the exchange gave " + std::to_string(formation.addresses.size()) +
                   " addresses for " + std::to_string(options.world) + " ranks");
  formation.handshake_timeout = options.handshake_timeout;
  formation.lost_peer = options.lost_peer;
  formation.on_refused = options.on_refused;
  return std::make_unique<TcpEndpoint>(options,
                                       internal::Formation(formation, listener).run(deadline));
}

}  // namespace weft::net

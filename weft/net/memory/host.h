// The ranks of one group that share a host: they read each other's heaps in place, meet, and wait
// for each other.
//
// Every rank's heap (heap.h) is mapped by all; a place in it is passed as a token and resolved with
// at(). Waiting is a bounded spin, then a futex in short slices; each slice looks for lost peers,
// the group's failure and the deadline, so no wait outlives its peers. Ranks may also be threads of
// one process (make_thread_hosts): tokens are then plain addresses and everything else is the same.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/error.h"
#include "weft/net/counter.h"

namespace weft::net {

// Gives every rank's string, in rank order, to every rank of the group. Implemented over a store by
// the layer above.
using Exchange = std::function<std::vector<std::string>(const std::string& mine)>;

// Where this process is: equal for two processes exactly if they can share memory (same boot,
// network namespace and user).
std::string host_id();

struct HostOptions {
  int rank = 0;
  int world = 1;  // all of them on this host
  Exchange exchange;
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);  // to connect
  // Gives a rank known to have ended; asked while connecting. Empty: nobody is ever known to have.
  std::function<std::optional<int>()> lost_peer;
};

class Host {
 public:
  // A place in a rank's memory, meaningful to all ranks of the group together with that rank's
  // number.
  using Token = std::uint64_t;
  static constexpr Token kNoToken = ~Token{0};

  // Collective. Throws Error(kUnavailable) on every rank, with one reason, where some rank cannot
  // share its memory: use messages then.
  static std::unique_ptr<Host> connect(const HostOptions& options);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  int rank() const noexcept { return rank_; }
  int world() const noexcept { return world_; }

  // The token of own memory; kNoToken where peers cannot read it (it does not lie in this process's
  // heap).
  Token token(const void* pointer) const noexcept;
  // `token` of `peer` as an address here.
  std::byte* at(int peer, Token token) const noexcept {
    return bases_[static_cast<std::size_t>(peer)] + token;
  }

  // Memory of this rank that its peers can read, 64-byte aligned, not zeroed. Throws
  // Error(kUnavailable) where the heap is full.
  std::byte* allocate(std::size_t bytes);
  void deallocate(std::byte* block) noexcept;
  // Collective: one zeroed block that all ranks see (at their own addresses). It lives as long as
  // the Host.
  std::byte* share(std::size_t bytes, std::chrono::nanoseconds timeout);

  // Returns when ready() is true. ready() reads shared memory that peers write before they call
  // notify(). Otherwise throws: the group's failure; kPeerLost; kTimeout. suspect() says which rank
  // is being waited for (-1: unknown). Other threads may wait at the same time.
  template <class Ready, class Suspect>
  void wait(Ready&& ready, Suspect&& suspect, const char* operation,
            std::chrono::nanoseconds timeout) {
    for (int i = 0; i < spins_; ++i) {
      if (ready()) return;
      pause();
      if (i % 256 == 255) yield();
    }
    wait_asleep(ready, suspect, operation, timeout);
  }
  // Wakes the peers that sleep in wait().
  void notify() noexcept;
  // Collective: nobody goes on before all have come here.
  void meet(const char* operation, std::chrono::nanoseconds timeout);

  // Ends the waits of all ranks of the group: with `error`'s code where it says what they can do
  // (kPeerLost, kTimeout, kInvalidArgument), else with kAborted. The first call of any rank wins.
  // Later operations should call check() first, which throws kPeerLost, else kAborted.
  void fail(const Error& error) noexcept;
  void check(const char* operation) const {
    if (failed()) throw_failure(operation, true);
  }
  bool failed() const noexcept;
  // A rank whose process has died, if any is known to.
  std::optional<int> lost_peer() const;
  // True where `peer` can touch nobody's memory any more: its process is dead, or it has left the
  // group in order.
  bool has_ended(int peer) const;
  std::optional<Error> failure() const;

  // Other ranks' memory that this rank has read or written, in bytes, as its users have counted it:
  // for whoever moves data outside of Direct. Any thread may call both.
  void count_moved(std::uint64_t bytes) noexcept { moved_.add_from_any_thread(bytes); }
  std::uint64_t moved_bytes() const noexcept { return moved_.value(); }

  // True where ranks outnumber the processors, so that spinning would take them from the peers
  // waited for.
  bool oversubscribed() const noexcept { return oversubscribed_; }

 private:
  struct Control;
  struct Links;
  struct Threads;
  friend std::vector<std::unique_ptr<Host>> make_thread_hosts(int world);

  Host(int rank, int world);
  // In case the peer waited for shares this rank's processor.
  static void yield() noexcept;
  // Decides how to wait, once all ranks have told where they may run.
  void place();
  void sit_down();
  static void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  void wait_asleep(const std::function<bool()>& ready, const std::function<int()>& suspect,
                   const char* operation, std::chrono::nanoseconds timeout);
  [[noreturn]] void throw_failure(const char* operation, bool late) const;
  void look_for_lost_peers(const char* operation, int suspect);

  int rank_;
  int world_;
  int spins_ = 0;
  bool oversubscribed_ = true;
  bool placed_ = false;
  std::uint32_t meetings_ = 0;
  std::vector<std::byte*> bases_;  // by rank; null bases for threads
  Control* control_ = nullptr;
  std::unique_ptr<Links> links_;
  Counter moved_;
};

// Hosts for `world` threads of this process.
std::vector<std::unique_ptr<Host>> make_thread_hosts(int world);

}  // namespace weft::net

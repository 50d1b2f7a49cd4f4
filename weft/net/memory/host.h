// Shared memory of the ranks of a group on one host: they read each other's heaps in place, and
// wait for each other at barriers or for single conditions.
//
// All ranks map the heap (heap.h) of every rank. A token names a location in a heap; at() resolves
// it. A wait is a bounded spin, then a futex in short slices. Each slice checks for lost peers, the
// group's failure and the deadline, so no wait outlives its peers. Ranks may also be threads of one
// process (make_thread_hosts); tokens are then plain addresses.
//
// A rank that ends an operation by an error may free its memory next. So peers use it only within a
// Touch, and the error is thrown when no peer is in one.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/error.h"
#include "weft/net/counter.h"
#include "weft/net/rank_names.h"
#include "weft/observe/position/position.h"
#include "weft/observe/position/rank_page.h"

namespace weft::net {

// Sends every rank's string, in rank order, to every rank of the group. The layer above implements
// it over a store.
using Exchange = std::function<std::vector<std::string>(const std::string& mine)>;

// Id of the host: equal for two processes exactly if they can share memory (same boot, network
// namespace and user).
std::string host_id();

struct HostOptions {
  int rank = 0;
  int world = 1;  // number of ranks, all on this host
  Exchange exchange;
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);  // to connect
  // Returns a rank that is known to have ended. Called while connecting. Empty: no rank is ever
  // known to have ended.
  std::function<std::optional<int>()> lost_peer;
};

class Host {
 public:
  // A location in a rank's memory. All ranks of the group can resolve it together with the number
  // of that rank.
  using Token = std::uint64_t;
  static constexpr Token kNoToken = ~Token{0};

  // Collective. If any rank cannot share its memory, throws Error(kUnavailable) with the same
  // reason on every rank; use messages then.
  static std::unique_ptr<Host> connect(const HostOptions& options);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  int rank() const noexcept { return rank_; }
  int world() const noexcept { return world_; }

  // Returns the token of own memory. kNoToken if peers cannot read it, because it is not in this
  // process's heap.
  Token token(const void* pointer) const noexcept;
  // Returns the address in this process of `token` of `peer`.
  std::byte* at(int peer, Token token) const noexcept {
    return bases_[static_cast<std::size_t>(peer)] + token;
  }

  // While it lives, this rank reads or writes memory that belongs to a peer, other than share()'s.
  // Within it, no function of Host waits. Throws the group's failure.
  class Touch {
   public:
    Touch(Host& host, const char* operation);
    ~Touch();
    Touch(const Touch&) = delete;
    Touch& operator=(const Touch&) = delete;

   private:
    Host& host_;
  };
  // Returns when no peer is in a Touch, or 10 s later. Does not wait for a peer that has ended or
  // is stopped; Heap::renew() excludes the latter. To be called before this rank frees what peers
  // know of, after they can see that they must not touch it. Every error of wait() and check() has
  // done so. Not within a Touch.
  void await_untouched() const noexcept;

  // Allocates memory that peers can read, 64-byte aligned and not zeroed. Throws
  // Error(kUnavailable) if the heap is full.
  std::byte* allocate(std::size_t bytes);
  void deallocate(std::byte* block) noexcept;
  // Collective: allocates one zeroed block that all ranks share (at their own addresses). Each rank
  // may use it as long as its Host lives. Throws Error(kUnavailable) on all ranks if rank 0's heap
  // is full. share() and meet() belong to one sequence of calls: all ranks make the same ones in
  // the same order, on one thread at a time. The calls of Direct have barriers of their own, so
  // they may run on another thread meanwhile.
  std::byte* share(std::size_t bytes, std::chrono::nanoseconds timeout);
  // share() for a caller with barriers of its own. tell() is collective, and returns the token of
  // rank 0 on all ranks. kNoToken: there is no room.
  std::byte* share_by(const std::function<Token(Token mine)>& tell, std::size_t bytes);

  // Names of the ranks in the position of a rank that waits. Call it before the first wait.
  void name_ranks(RankNames names) { names_ = std::move(names); }
  const RankNames& rank_names() const { return names_; }
  // Name of the group in these positions.
  void name_group(const std::string& name) { group_name_ = observe::ShortName(name); }
  const observe::ShortName& group_name() const { return group_name_; }

  // Returns when ready() is true. ready() reads shared memory that peers write before they call
  // notify(). Throws the group's failure, kPeerLost or kTimeout. suspect() returns the rank that is
  // awaited (-1: unknown). Other threads may wait at the same time.
  template <class Ready, class Suspect>
  void wait(Ready&& ready, Suspect&& suspect, const char* operation,
            std::chrono::nanoseconds timeout) {
    for (int i = 0; i < quick_spins_; ++i) {
      if (ready()) return;
      pause();
    }
    wait_longer(std::ref(ready), std::ref(suspect), operation, timeout);
  }
  // The same for what `peer` does (-1: unknown). The rank's position shows the operation, with the
  // `number` that it has in the group.
  template <class Ready>
  void wait_for(int peer, const Ready& ready, const char* operation, std::uint64_t number,
                std::chrono::nanoseconds timeout) {
    const observe::OperationScope here({.name = operation, .group = group_name_, .number = number});
    wait(
        ready, [peer] { return peer; }, operation, timeout);
  }
  // Wakes the peers that sleep in wait().
  void notify() noexcept;
  // Collective barrier. See share().
  void meet(const char* operation, std::chrono::nanoseconds timeout);

  // Ends the waits of all ranks of the group, with `error`'s code if it is kPeerLost, kTimeout or
  // kInvalidArgument, otherwise with kAborted. The first call of any rank wins. Later operations
  // should call check() first, which throws kPeerLost, else kAborted.
  void fail(const Error& error) noexcept;
  // fail(), and throws `error` itself when no peer is in a Touch.
  [[noreturn]] void fail_by(const Error& error);
  void check(const char* operation) const {
    if (failed()) throw_failure(operation, true);
  }
  bool failed() const noexcept;
  // A rank whose process has died, if any is known.
  std::optional<int> lost_peer() const;
  // True if `peer` can no longer touch other ranks' memory: its process is dead, or it has left the
  // group in order.
  bool has_ended(int peer) const;
  // The first error of any rank, with its operation and that rank.
  std::optional<Error> failure() const;

  // Counts bytes of other ranks' memory that this rank has read or written. Code that moves data
  // outside of Direct calls count_moved(). Any thread may call both.
  void count_moved(std::uint64_t bytes) noexcept { moved_.add_from_any_thread(bytes); }
  std::uint64_t moved_bytes() const noexcept { return moved_.value(); }

  // True if there are more ranks than processors, so that spinning would take processor time from
  // the awaited peers.
  bool oversubscribed() const noexcept { return oversubscribed_; }

 private:
  struct Control;
  struct Links;
  struct Threads;
  friend std::vector<std::unique_ptr<Host>> make_thread_hosts(int world);

  Host(int rank, int world);
  // Decides how to wait, once all ranks have published their processors.
  void place();
  void sit_down();
  Token share_own(std::size_t bytes);
  static void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  // The rest of wait(), after a few microseconds: this rank's position shows it.
  void wait_longer(const std::function<bool()>& ready, const std::function<int()>& suspect,
                   const char* operation, std::chrono::nanoseconds timeout);
  bool spin(const std::function<bool()>& ready) const;
  bool is_held(int peer) const noexcept;
  [[noreturn]] void throw_failure(const char* operation, bool late) const;
  void look_for_lost_peers(const std::function<bool()>& ready, const char* operation, int suspect);

  int rank_;
  int world_;
  int quick_spins_ = 0, spins_ = 0;
  bool oversubscribed_ = true;
  bool placed_ = false;
  std::uint32_t meetings_ = 0;
  std::vector<std::byte*> bases_;  // by rank; null bases for threads
  RankNames names_;
  observe::ShortName group_name_;
  Control* control_ = nullptr;
  std::unique_ptr<Links> links_;
  Counter moved_;
};

// Frees memory that rank 0 of a group shared and the other ranks do not use any more. A host does
// this at its end, for all groups before; but the other ranks may leave later than rank 0.
void release_left_groups();

// Hosts for `world` threads of this process.
std::vector<std::unique_ptr<Host>> make_thread_hosts(int world);

}  // namespace weft::net

// Where this process is: it writes its record of the page that it shares with its launcher
// (rank_page.h), so that others see what it does and for whom it waits.
//
//   set_step(12), ActivityScope in(Activity::kForward)      the loop: a clock reading each
//   OperationScope scope({.name = "all_reduce", …})         an operation: about 10 ns in all
//   WaitScope wait("step", peer)                            a wait that takes longer than a few us
//
// Without a launcher the page is private to the process. Positions never fail: a process that
// cannot write its record goes on without one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "weft/observe/position/rank_page.h"

namespace weft::observe {

// CLOCK_MONOTONIC in nanoseconds, the clock of all times of a page.
std::int64_t monotonic_ns() noexcept;

// What the launcher asks of its ranks. Valid as long as the process. Reading a field costs one
// load.
const PageHeader& page_header();
// Tells the launcher the run folder. Called on rank 0.
void tell_run_folder(const std::string& path);

// Takes the record of the rank that the environment names now: for a spare that has become a rank.
// Call it outside of all operations and scopes, while no other thread is in one.
void attach_position();
// The rank of the job that this process is; the launcher's number until it is set.
void set_position_rank(int rank);
// The step that the calling thread begins, from 1. This thread drives the steps from now on.
void set_step(std::int64_t step) noexcept;
void set_activity(Activity activity) noexcept;
// The activity of the driving thread until the scope ends; then it is the previous one again.
class ActivityScope {
 public:
  explicit ActivityScope(Activity activity) noexcept;
  ~ActivityScope();
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

 private:
  const Activity before_;
};

// Asks the launcher for a new process in place of this one. The launcher may refuse.
void ask_for_replacement() noexcept;

// Nanoseconds that the calling thread has waited for peers so far, and other threads for it.
std::int64_t waited_ns() noexcept;

// The waits of other threads for a thread, as of autograd's threads for the one in backward().
class WaitAccount {
 public:
  WaitAccount() = default;  // of no thread
  static WaitAccount of_this_thread();

 private:
  friend class WaitsFor;
  std::shared_ptr<std::atomic<std::int64_t>> waited_;
};
// While it lives, the waits of this thread count for the account's thread too. No effect on that
// thread itself, and within another one.
class WaitsFor {
 public:
  explicit WaitsFor(const WaitAccount& account);
  ~WaitsFor();
  WaitsFor(const WaitsFor&) = delete;
  WaitsFor& operator=(const WaitsFor&) = delete;

 private:
  std::shared_ptr<std::atomic<std::int64_t>> waited_;  // null: no effect
  std::int64_t before_ = 0;
};

namespace internal {

// The calling thread's part of the record.
struct Writer {
  OperationSlot* slot = nullptr;
  bool in_operation = false;
  int waits = 0;  // nested wait scopes
  std::int64_t waited = 0;
};
extern constinit thread_local Writer writer;
// Gives the calling thread a slot.
void claim_slot() noexcept;

inline Writer& own_writer() noexcept {
  if (writer.slot == nullptr) [[unlikely]]
    claim_slot();
  return writer;
}

}  // namespace internal

// The operation that the calling thread is in until the scope ends. Within another one it changes
// nothing: the outermost operation is shown.
class OperationScope {
 public:
  explicit OperationScope(const Operation& operation) noexcept {
    internal::Writer& mine = internal::own_writer();
    if (mine.in_operation) return;
    mine.in_operation = shows_ = true;
    mine.slot->operation.write(operation);
  }
  ~OperationScope() {
    if (!shows_) return;
    internal::Writer& mine = internal::own_writer();
    mine.in_operation = false;
    mine.slot->operation.amend(offsetof(Operation, waits_since),
                               static_cast<std::uint64_t>(Operation::kOver));
  }
  OperationScope(const OperationScope&) = delete;
  OperationScope& operator=(const OperationScope&) = delete;

 private:
  bool shows_ = false;
};

// A wait of the calling thread for a peer, until the scope ends. Costs two clock readings. Outside
// of an operation, the wait is shown as `alone`. Within another wait it only names the peer.
class WaitScope {
 public:
  // `peer`: a rank of the job; -1: unknown. `slice`: the waiting thread calls set_peer() at least
  // so often, in nanoseconds. A longer time between two calls does not count as waiting: the
  // process was stopped, or got no processor. 0: there is no such limit.
  WaitScope(const Operation& alone, int peer, std::int64_t slice = 0) noexcept;
  WaitScope(const char* name, int peer, std::int64_t slice = 0) noexcept
      : WaitScope(Operation{.name = name}, peer, slice) {}
  ~WaitScope();
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;

  // The wait is for this peer from now on.
  void set_peer(int peer) noexcept;

 private:
  void count() noexcept;

  Operation shown_;
  const bool outermost_, alone_;
  const std::int64_t slice_;
  std::int64_t counted_ = 0;  // CLOCK_MONOTONIC: the time until then has been counted
};

}  // namespace weft::observe

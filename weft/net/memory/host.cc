// How the ranks of a host connect, wait for each other, and fail together. State that all ranks see
// lies in one Control, in the heap of rank 0. Zeros are its valid first state.
//
// connect() is two exchanges, after each of which all ranks know the same answers. So either all
// ranks get a Host, or all throw the same reason:
//   1. Each rank opens a listener and sends its name, or "!" and why it has none.
//   2. The ranks link and map each other's heaps (internal/links.h). Rank 0 sends the place of the
//      Control. A rank that failed sends "!" and why.
//
// A wait that sleeps, and the peer that ends it:
//
//   waiter                                    peer
//     asleep = 1                                write the data
//     ready()? yes: return                      fence
//     futex_wait(asleep, 1), one slice          asleep is 1? set it to 0, futex_wake
//
// Each side writes first and then reads, so one of them sees the other. Waits of several threads of
// a rank share its word, and each wake-up wakes all of them. A lost wake-up would cost one slice.
//
// A failure: a rank writes the reason to its own seat and then claims `first_failure`. The first
// claim wins. A rank that sees the claim sees the reason, since both are in this order. A Touch
// uses the same rule as above: it announces itself and then reads `first_failure`; a rank that
// fails claims it and then waits for announced peers, up to kMaxTouch. So no running peer writes to
// memory that is freed after an error.
//
// The end: `departed` is kLeaves, then kHasLeft. With kLeaves the closed socket is no death. With
// kHasLeft the rank touches the Control no more, so rank 0 may free it (internal/left_groups.h).
#include "weft/net/memory/host.h"
#include "weft/base/text/numbers.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <thread>

#include "weft/base/deadline.h"
#include "weft/net/internal/open_files.h"
#include "weft/net/memory/heap.h"
#include "weft/net/memory/internal/futex.h"
#include "weft/net/memory/internal/left_groups.h"
#include "weft/net/memory/internal/links.h"
#include "weft/observe/position/position.h"
#include "weft/observe/position/thread_state.h"

namespace weft::net {
namespace {

using namespace std::chrono_literals;

constexpr int kMaxRanks = 256;  // on one host
// If each rank has its own processor, a waiter spins about this long before it sleeps, since a
// futex wake-up costs at least 50 us.
constexpr int kSpinsAlone = 4000;
// A wait that takes more spins, some microseconds, is shown in the position of the rank.
constexpr int kQuickSpins = 256;
constexpr int kSpinsOversubscribed = 20;
constexpr int kYieldsOversubscribed = 16;
constexpr auto kSlice = 10ms;
constexpr auto kMaxTouch = 10s;
// kHasLeft: the rank touches the group's memory no more.
constexpr std::uint32_t kLeaves = 1, kHasLeft = 2;

Error no_room(const std::string& where, std::size_t bytes) {
  return Error(Errc::kUnavailable, where + " has no room for " + std::to_string(bytes) +
                                       " bytes (WEFT_HEAP_MB sets its limit)");
}

std::string milliseconds(std::chrono::nanoseconds time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(time).count()) +
         " ms";
}

}  // namespace

// State shared by all ranks of the group. Zeroed memory is its valid initial state.
struct Host::Control {
  struct Failure {
    std::int32_t code, peer;
    char operation[32], text[432];
  };
  struct alignas(128) Seat {
    std::atomic<std::uint32_t> meetings;
    std::atomic<std::uint32_t> departed;  // kLeaves, then kHasLeft
    std::atomic<std::int32_t> pid;
    std::atomic<std::uint32_t> touching;  // number of this rank's Touch objects
    cpu_set_t processors;                 // processors on which this rank may run
    Failure failure;                      // valid in the seat that first_failure names
  };
  std::atomic<std::uint32_t> first_failure;  // 1 + its rank; 0: none
  std::atomic<std::uint64_t> shared_token;
  alignas(128) std::atomic<std::uint32_t> asleep[kMaxRanks];  // 1: the rank sleeps on this word
  Seat seats[kMaxRanks];
};

// State shared by the ranks of a thread group. The last rank frees it.
struct Host::Threads {
  Control control{};
  std::vector<std::byte*> blocks;  // blocks of share(); only rank 0 appends

  ~Threads() {
    for (std::byte* block : blocks) ::operator delete[](block, std::align_val_t(128));
  }
};

namespace {

// Location of the Control in the heap of rank 0, as rank 0 sends it: "ok 4096".
std::size_t control_offset(const std::string& said, std::size_t heap_bytes,
                           std::size_t control_bytes) {
  if (said.rfind("ok ", 0) == 0) {
    const auto offset = parse_number<std::size_t>(said.substr(3));
    if (offset && *offset % 64 == 0 && control_bytes <= heap_bytes &&
        *offset <= heap_bytes - control_bytes)
      return *offset;
  }
  throw Error(Errc::kCorrupt, "rank 0 places the group's memory at '" + said.substr(0, 40) +
                                  "', which is not in its heap");
}

}  // namespace

// Private state of this process.
struct Host::Links {
  std::vector<internal::Link> links;        // empty for threads
  Heap* heap = nullptr;                     // null for threads
  std::shared_ptr<Threads> threads;         // null for processes
  std::mutex mutex;                         // guards this rank's failure and the fields below
  std::vector<std::byte*> shared;           // blocks of rank 0 made by share()
  Deadline::Clock::time_point looked = {};  // time of the last check for lost peers
};

Host::Host(int rank, int world)
    : rank_(rank),
      world_(world),
      bases_(static_cast<std::size_t>(world)),
      links_(std::make_unique<Links>()) {
  WEFT_REQUIRE(world <= kMaxRanks,
               "at most 256 ranks can share one host's memory; got " + std::to_string(world));
  quick_spins_ = spins_ = kSpinsOversubscribed;
}

std::unique_ptr<Host> Host::connect(const HostOptions& options) {
  release_left_groups();
  // For each peer a connection and its memory, and some files for the listener and the exchange.
  internal::allow_open_files(static_cast<std::size_t>(2 * options.world + 16));
  auto host = std::unique_ptr<Host>(new Host(options.rank, options.world));
  Heap* const heap = process_heap();
  std::optional<internal::LinkListener> listener;
  std::string name = std::string("!") + process_heap_error();
  if (heap != nullptr && heap->is_of_parent()) {
    name =
        "!this process was forked from one that had used weft; start it by exec(), or before that";
  } else if (heap != nullptr) {
    try {
      name = listener.emplace().name();
    } catch (const Error& error) {  // the others are told, since they wait for the name
      name = "!" + error.message();
    }
  }
  const auto names = options.exchange(name);
  for (std::size_t peer = 0; peer < names.size(); ++peer) {
    if (names[peer].rfind("!", 0) == 0) {
      throw Error(
          Errc::kUnavailable,
          "rank " + std::to_string(peer) + " has no shared memory: " + names[peer].substr(1),
          {"connect", options.rank});
    }
  }
  std::string mine = "ok";
  std::byte* control = nullptr;
  try {
    host->links_->links = internal::link_all(
        *listener,
        {options.rank, names, heap->fd(), heap->size(), options.timeout, options.lost_peer});
    if (options.rank == 0) {
      control = static_cast<std::byte*>(heap->allocate(sizeof(Control)));
      if (control == nullptr) throw Error(Errc::kUnavailable, "the heap is full");
      std::memset(static_cast<void*>(control), 0, sizeof(Control));
      // Peers may use it as soon as they know its place, even if this rank's exchange fails. From
      // now on the destructor keeps it until they have left.
      host->links_->heap = heap;
      host->control_ = reinterpret_cast<Control*>(control);
      mine += " " + std::to_string(heap->offset(control));
    }
  } catch (const Error& error) {
    mine = "!" + error.message();
  }
  const auto answers = options.exchange(mine);
  for (std::size_t peer = 0; peer < answers.size(); ++peer) {
    if (answers[peer].rfind("!", 0) == 0) {
      host->control_ = nullptr;  // no rank uses it
      if (control != nullptr) heap->deallocate(control);
      throw Error(Errc::kUnavailable,
                  "rank " + std::to_string(peer) + ": " + answers[peer].substr(1),
                  {"connect", options.rank});
    }
  }
  for (int peer = 0; peer < options.world; ++peer) {
    const auto& link = host->links_->links[static_cast<std::size_t>(peer)];
    host->bases_[static_cast<std::size_t>(peer)] =
        peer == options.rank ? heap->data() : link.heap->data();
  }
  host->links_->heap = heap;
  const std::size_t heap_bytes =
      options.rank == 0 ? heap->size() : host->links_->links[0].heap->size();
  host->control_ = reinterpret_cast<Control*>(
      host->at(0, control_offset(answers[0], heap_bytes, sizeof(Control))));
  host->sit_down();
  return host;
}

std::vector<std::unique_ptr<Host>> make_thread_hosts(int world) {
  const auto threads = std::make_shared<Host::Threads>();
  std::vector<std::unique_ptr<Host>> hosts;
  for (int rank = 0; rank < world; ++rank) {
    hosts.push_back(std::unique_ptr<Host>(new Host(rank, world)));
    hosts.back()->links_->threads = threads;
    hosts.back()->control_ = &threads->control;
    hosts.back()->sit_down();
  }
  return hosts;
}

void Host::sit_down() {
  auto& seat = control_->seats[rank_];
  seat.pid.store(getpid());
  if (sched_getaffinity(0, sizeof seat.processors, &seat.processors) != 0)
    CPU_ZERO(&seat.processors);
}

// If each rank is bound to its own processor (as mpirun does), there are as many processors as
// ranks.
void Host::place() {
  placed_ = true;
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int peer = 0; peer < world_; ++peer) CPU_OR(&all, &all, &control_->seats[peer].processors);
  oversubscribed_ = world_ > CPU_COUNT(&all);
  spins_ = oversubscribed_ ? kSpinsOversubscribed : kSpinsAlone;
  quick_spins_ = std::min(spins_, kQuickSpins);
}

Host::~Host() {
  if (control_ != nullptr) {
    auto& departed = control_->seats[rank_].departed;
    // notify() still writes to the Control, so the rank has left only after it.
    departed.store(kLeaves, std::memory_order_release);
    notify();
    departed.store(kHasLeft, std::memory_order_release);
  }
  if (control_ == nullptr || links_->heap == nullptr || rank_ != 0) {
    for (const auto& link : links_->links)
      if (link.fd >= 0) close(link.fd);
    return;
  }
  // Peers may still use the memory that rank 0 shared.
  internal::LeftGroup group{
      .heap = links_->heap,
      .blocks = {links_->shared.begin(), links_->shared.end()},
      .links = std::move(links_->links),
      .has_ended = [control = control_](const internal::Link& link, int peer) {
        return control->seats[peer].departed.load(std::memory_order_acquire) == kHasLeft ||
               internal::is_closed(link);
      }};
  group.blocks.push_back(control_);
  for (auto& link : group.links) link.heap.reset();
  internal::retire(std::move(group));
  release_left_groups();
}

Host::Token Host::token(const void* pointer) const noexcept {
  if (links_->heap == nullptr) return reinterpret_cast<Token>(pointer);
  return links_->heap->contains(pointer) ? links_->heap->offset(pointer) : kNoToken;
}

std::byte* Host::allocate(std::size_t bytes) {
  void* block = links_->heap == nullptr
                    ? ::operator new[](bytes, std::align_val_t(128), std::nothrow)
                    : links_->heap->allocate(bytes);
  if (block == nullptr) throw no_room("the shared heap", bytes);
  return static_cast<std::byte*>(block);
}

void Host::deallocate(std::byte* block) noexcept {
  if (links_->heap == nullptr) {
    ::operator delete[](block, std::align_val_t(128));
  } else {
    links_->heap->deallocate(block);
  }
}

std::byte* Host::share(std::size_t bytes, std::chrono::nanoseconds timeout) {
  const auto tell = [&](Token mine) {
    // The second meeting keeps rank 0 from storing the token of the next block before all ranks
    // have read this one.
    if (rank_ == 0) control_->shared_token.store(mine);
    meet("share", timeout);
    const Token shared = control_->shared_token.load();
    meet("share", timeout);
    if (!placed_) place();
    return shared;
  };
  return share_by(tell, bytes);
}

std::byte* Host::share_by(const std::function<Token(Token mine)>& tell, std::size_t bytes) {
  const Token shared = tell(rank_ == 0 ? share_own(bytes) : kNoToken);
  if (shared == kNoToken) throw no_room("the shared heap of rank 0", bytes);
  return at(0, shared);
}

// kNoToken: there is no room. The others wait for the block, so they are told.
Host::Token Host::share_own(std::size_t bytes) {
  std::byte* block = nullptr;
  try {
    block = allocate(bytes);
  } catch (const Error&) {  // no room
    return kNoToken;
  }
  std::memset(block, 0, bytes);
  std::lock_guard lock(links_->mutex);
  (links_->threads ? links_->threads->blocks : links_->shared).push_back(block);
  return token(block);
}

void Host::notify() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int peer = 0; peer < world_; ++peer) {
    auto& word = control_->asleep[peer];
    if (peer != rank_ && word.load(std::memory_order_relaxed) != 0 && word.exchange(0) != 0)
      futex_wake(word);
  }
}

void Host::meet(const char* operation, std::chrono::nanoseconds timeout) {
  check(operation);
  const std::uint32_t mine = ++meetings_;
  control_->seats[rank_].meetings.store(mine, std::memory_order_release);
  notify();
  int peer = 0;
  wait(
      [&] {
        while (peer < world_ &&
               static_cast<std::int32_t>(
                   control_->seats[peer].meetings.load(std::memory_order_acquire) - mine) >= 0)
          ++peer;
        return peer == world_;
      },
      [&] { return peer; }, operation, timeout);
}

bool Host::spin(const std::function<bool()>& ready) const {
  for (int i = quick_spins_; i < spins_; ++i) {
    if (ready()) return true;
    pause();
    if (i % 256 == 255) sched_yield();  // the awaited peer may share this rank's processor
  }
  for (int i = 0; oversubscribed_ && i < kYieldsOversubscribed; ++i) {
    sched_yield();
    if (ready()) return true;
  }
  return false;
}

void Host::wait_longer(const std::function<bool()>& ready, const std::function<int()>& suspect,
                       const char* operation, std::chrono::nanoseconds timeout) {
  observe::WaitScope shown({.name = operation, .group = group_name_}, names_.of(suspect()),
                           std::chrono::nanoseconds(kSlice).count());
  // The loop below makes a system call in each round, so short waits should end here.
  if (spin(ready)) return;
  const auto deadline = Deadline::in(timeout);
  auto& word = control_->asleep[rank_];
  for (;;) {
    if (failed()) throw_failure(operation, false);
    // Set again in each round: a wake-up for another thread of this rank has set it to 0.
    word.store(1);
    if (ready()) return;
    futex_wait(word, 1, std::min<std::chrono::nanoseconds>(kSlice, deadline.left() + 1us));
    if (ready()) return;
    shown.set_peer(names_.of(suspect()));
    look_for_lost_peers(ready, operation, suspect());
    if (!failed() && deadline.passed()) {
      const int peer = suspect();
      fail(Error(Errc::kTimeout,
                 "rank " + std::to_string(peer) + " (process " +
                     std::to_string(peer >= 0 ? control_->seats[peer].pid.load() : 0) +
                     ") did not arrive within " + milliseconds(timeout) +
                     "; it hangs, is stopped or made another call",
                 {operation, rank_, peer}));
    }
  }
}

// A closed socket means a dead process, which is lost for all ranks. A rank that left in order is
// lost only for ranks that wait for it: it may have left since this rank last looked, after it had
// done its part.
void Host::look_for_lost_peers(const std::function<bool()>& ready, const char* operation,
                               int suspect) {
  const auto now = Deadline::Clock::now();
  {
    std::lock_guard lock(links_->mutex);
    if (now - links_->looked < 2 * kSlice) return;
    links_->looked = now;
  }
  const auto departed = [&](int peer) {
    return control_->seats[peer].departed.load(std::memory_order_acquire) != 0;
  };
  std::optional<int> lost = lost_peer();
  const bool died = lost.has_value();
  if (!died && suspect >= 0 && departed(suspect)) lost = suspect;
  // A rank may do its part and then end: ready() is asked again after the loss was seen.
  if (!lost || ready()) return;
  fail(Error(Errc::kPeerLost,
             "rank " + std::to_string(*lost) + " (process " +
                 std::to_string(control_->seats[*lost].pid.load()) + ") " +
                 (died ? "has died" : "has left the group") + " while rank " +
                 std::to_string(rank_) + " waited for it",
             {operation, rank_, *lost}));
}

std::optional<int> Host::lost_peer() const {
  return internal::first_closed(links_->links, [&](int peer) {
    return control_->seats[peer].departed.load(std::memory_order_acquire) != 0;
  });
}

bool Host::has_ended(int peer) const {
  const auto departed = control_->seats[peer].departed.load(std::memory_order_acquire);
  return departed == kHasLeft ||
         (!links_->links.empty() &&
          internal::is_closed(links_->links[static_cast<std::size_t>(peer)]));
}

void Host::fail(const Error& error) noexcept {
  const std::lock_guard lock(links_->mutex);
  if (failed()) return;
  auto& mine = control_->seats[rank_].failure;
  mine.code = static_cast<std::int32_t>(error.code());
  mine.peer = error.context().peer;
  std::strncpy(mine.operation, error.context().operation.c_str(), sizeof mine.operation - 1);
  std::strncpy(mine.text, error.message().c_str(), sizeof mine.text - 1);
  std::uint32_t none = 0;
  control_->first_failure.compare_exchange_strong(none, 1 + static_cast<std::uint32_t>(rank_));
  notify();
}

bool Host::failed() const noexcept { return control_->first_failure.load() != 0; }

std::optional<Error> Host::failure() const {
  const auto first = static_cast<int>(control_->first_failure.load());
  if (first == 0) return std::nullopt;
  const auto& found = control_->seats[first - 1].failure;
  return Error(static_cast<Errc>(found.code),
               std::string(found.text, strnlen(found.text, sizeof found.text)),
               {std::string(found.operation, strnlen(found.operation, sizeof found.operation)),
                first - 1, found.peer});
}

void Host::fail_by(const Error& error) {
  fail(error);
  await_untouched();
  throw error;
}

// The peer sees the failure, or this rank sees that it touches: both write first, then read.
Host::Touch::Touch(Host& host, const char* operation) : host_(host) {
  auto& touching = host_.control_->seats[host_.rank_].touching;
  touching.fetch_add(1);
  if (!host_.failed()) return;
  touching.fetch_sub(1);
  host_.throw_failure(operation, true);
}

Host::Touch::~Touch() {
  host_.control_->seats[host_.rank_].touching.fetch_sub(1, std::memory_order_release);
}

void Host::await_untouched() const noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const auto deadline = Deadline::in(kMaxTouch);
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    const auto& touching = control_->seats[peer].touching;
    for (int looks = 0; touching.load() != 0 && !deadline.passed(); ++looks) {
      std::this_thread::sleep_for(50us);
      if (looks % 64 == 63 && (has_ended(peer) || is_held(peer))) break;
    }
  }
}

// True also if there is no memory to find out.
bool Host::is_held(int peer) const noexcept {
  if (links_->threads) return false;
  try {
    const pid_t pid = control_->seats[peer].pid.load();
    return observe::read_thread_state(pid, pid).is_held();
  } catch (const std::exception&) {  // no memory, or the process is gone
    return true;
  }
}

void Host::throw_failure(const char* operation, bool late) const {
  await_untouched();
  const Error first = *failure();
  const bool lost = first.code() == Errc::kPeerLost;
  const bool telling = first.code() == Errc::kTimeout || first.code() == Errc::kInvalidArgument;
  if (lost || (telling && !late))
    throw Error(first.code(), first.message(), {operation, rank_, first.context().peer});
  throw Error(Errc::kAborted,
              "the group has failed: rank " + std::to_string(first.context().rank) +
                  " reported: " + first.message(),
              {operation, rank_, first.context().peer});
}

}  // namespace weft::net

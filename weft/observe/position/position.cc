#include "weft/observe/position/position.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/text/variables.h"

namespace weft::observe {
namespace {

// For a process without memory for a page, and for a fork of a rank, which is not a rank.
struct Spare {
  PageHeader header;
  RankRecord record;
};
constinit Spare spare{};
// Of threads that find all slots of the record taken.
thread_local OperationSlot spare_slot;

// Waits of other threads for this one; null: nobody has asked for it.
thread_local std::shared_ptr<std::atomic<std::int64_t>> own_account;
// Whether this thread is in a WaitsFor with an effect.
thread_local bool is_for_another = false;

// A number in the environment; -1 if there is none.
int number_of(const char* name) { return number_variable(name).value_or(-1); }

std::int32_t this_thread() { return static_cast<std::int32_t>(::syscall(SYS_gettid)); }

// The page of the launcher, through the descriptor that this process inherited.
std::optional<RankPage> inherited_page(int local) {
  const int fd = number_of("WEFT_PAGE_FD");
  if (fd < 0 || local < 0) return std::nullopt;
  // The number may name another file in a program that a rank has started.
  auto page = RankPage::map(UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 3)), true);
  if (!page || local >= page->ranks()) return std::nullopt;
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return page;
}

class Attached {
 public:
  static Attached& here() {
    static Attached* const one = new Attached();  // threads may outlive static objects
    return *one;
  }
  RankRecord& record() const { return *record_; }
  const PageHeader& header() const { return *header_; }
  const std::optional<RankPage>& page() const { return page_; }

  static void leave_in_fork();

  // Takes the record that the environment names now.
  void attach() {
    if (page_) former_.push_back(std::move(*page_));
    page_.reset();
    int local = number_of("LOCAL_RANK");
    page_ = inherited_page(local);
    if (!page_) {
      local = 0;
      try {
        page_ = RankPage::make(1, std::max(0, number_of("RANK")), 1);
      } catch (const Error&) {  // no memory: this process shows no position
        return;
      }
    }
    header_ = &page_->header();
    record_ = &page_->record(local);
    Standing standing;
    standing.rank = record_->standing.read().rank;
    page_->clear(local, standing.rank);
    standing.pid = ::getpid();
    standing.thread = this_thread();
    standing.since = monotonic_ns();
    record_->standing.write(standing);
  }

 private:
  Attached() {
    attach();
    // A fork of a rank must not write the rank's record.
    ::pthread_atfork(nullptr, nullptr, leave_in_fork);
  }

  std::optional<RankPage> page_;
  std::vector<RankPage> former_;  // slots of other threads may still be in them
  PageHeader* header_ = &spare.header;
  RankRecord* record_ = &spare.record;
};

// Returns the thread's slot when the thread ends.
struct Release {
  OperationSlot* slot = nullptr;
  ~Release() {
    if (slot == nullptr) return;
    slot->operation.write({});
    slot->thread.store(0, std::memory_order_release);
    internal::writer.slot = &spare_slot;
  }
};
thread_local Release release;

void Attached::leave_in_fork() {
  here().header_ = &spare.header;
  here().record_ = &spare.record;
  release.slot = nullptr;
  internal::writer = {};
}

template <class Change>
void change_standing(const Change& change) noexcept {
  auto& published = Attached::here().record().standing;
  Standing standing = published.read();
  change(standing);
  published.write(standing);
}

}  // namespace

std::int64_t monotonic_ns() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

const PageHeader& page_header() { return Attached::here().header(); }

void tell_run_folder(const std::string& path) {
  if (const auto& page = Attached::here().page()) page->set_run_folder(path);
}

void attach_position() {
  if (release.slot != nullptr) {
    release.slot->operation.write({});
    release.slot->thread.store(0, std::memory_order_release);
  }
  release.slot = nullptr;
  internal::writer = {};
  Attached::here().attach();
}

void set_position_rank(int rank) {
  change_standing([&](Standing& standing) { standing.rank = rank; });
}

void set_step(std::int64_t step) noexcept {
  change_standing([&](Standing& standing) {
    standing.step = step;
    standing.thread = this_thread();
  });
}

void set_activity(Activity activity) noexcept {
  change_standing([&](Standing& standing) {
    standing.activity = activity;
    standing.since = monotonic_ns();
  });
}

ActivityScope::ActivityScope(Activity activity) noexcept
    : before_(Attached::here().record().standing.read().activity) {
  set_activity(activity);
}
ActivityScope::~ActivityScope() { set_activity(before_); }

void ask_for_replacement() noexcept { Attached::here().record().wants_replacement.store(1); }

std::int64_t waited_ns() noexcept {
  return internal::writer.waited + (own_account ? own_account->load(std::memory_order_relaxed) : 0);
}

WaitAccount WaitAccount::of_this_thread() {
  if (!own_account) own_account = std::make_shared<std::atomic<std::int64_t>>(0);
  WaitAccount account;
  account.waited_ = own_account;
  return account;
}

WaitsFor::WaitsFor(const WaitAccount& account) {
  if (is_for_another || account.waited_ == nullptr || account.waited_ == own_account) return;
  waited_ = account.waited_;
  before_ = internal::writer.waited;
  is_for_another = true;
}

WaitsFor::~WaitsFor() {
  if (waited_ == nullptr) return;
  is_for_another = false;
  waited_->fetch_add(internal::writer.waited - before_, std::memory_order_relaxed);
}

namespace internal {

constinit thread_local Writer writer;

void claim_slot() noexcept {
  writer.slot = &spare_slot;
  const std::int32_t self = this_thread();
  for (OperationSlot& slot : Attached::here().record().slots) {
    std::int32_t none = 0;
    if (!slot.thread.compare_exchange_strong(none, self, std::memory_order_acq_rel)) continue;
    writer.slot = release.slot = &slot;
    return;
  }
}

}  // namespace internal

WaitScope::WaitScope(const Operation& alone, int peer, std::int64_t slice) noexcept
    : outermost_(internal::own_writer().waits++ == 0),
      alone_(!internal::writer.in_operation),
      slice_(slice) {
  internal::Writer& mine = internal::writer;
  if (alone_) {
    shown_ = alone;
    mine.in_operation = true;
  } else {
    shown_ = mine.slot->operation.read();
  }
  if (outermost_) shown_.waits_since = counted_ = monotonic_ns();
  shown_.peer = peer;
  mine.slot->operation.write(shown_);
}

void WaitScope::count() noexcept {
  const std::int64_t now = monotonic_ns(), passed = now - counted_;
  internal::writer.waited += slice_ > 0 ? std::min(passed, 2 * slice_) : passed;
  counted_ = now;
}

void WaitScope::set_peer(int peer) noexcept {
  if (outermost_ && slice_ > 0) count();
  if (peer == shown_.peer) return;
  shown_.peer = peer;
  internal::writer.slot->operation.write(shown_);
}

WaitScope::~WaitScope() {
  internal::Writer& mine = internal::writer;
  --mine.waits;
  if (!outermost_) return;
  count();
  shown_.waits_since = alone_ ? Operation::kOver : 0;
  shown_.peer = -1;
  if (alone_) mine.in_operation = false;
  mine.slot->operation.write(shown_);
}

}  // namespace weft::observe

// Where a block comes from, and where it goes when it is freed:
//
//   small (up to 32 KiB): the thread's cache ◄─ the class's list ◄─ a span, cut ─┐
//   large (whole pages):  ───────────────────────────────────────────────────────┴─ pages
//
//   pages: free_ ◄─ released_, else new memory at top_ (grow())
//
// A source is asked only if the one to its left is empty. A freed small block joins the cache of
// the thread that frees it, whichever thread has allocated it; from a full cache, half moves to the
// list. Freed pages join free_, and trim() moves whole huge pages from there to released_. A span
// keeps its class forever: small blocks never become free pages again.
//
// A freed pointer carries no size. `kinds_` has it: the class of a span's pages, or the length of
// the large block that begins at the page. It is written under the lock when pages are taken. A
// free reads it without the lock: the entry of a live block does not change, and the pointer came
// to this thread after the entry was written.
//
// Locks: a thread cache belongs to its thread and needs none. mutex_ guards the lists and the
// pages. A thread takes it once for up to 64 small blocks, and for every large block. The counters
// are atomic without order: they are statistics.
#include "weft/net/memory/heap.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/text/variables.h"
#include "weft/net/memory/internal/page_ranges.h"
#include "weft/net/memory/internal/region.h"

namespace weft::net {
namespace {

constexpr std::size_t kPage = 4096;
// Blocks up to this size are cut from spans and cached per thread. Larger ones are whole pages.
constexpr std::size_t kSmallMax = 32 << 10;
constexpr std::size_t kSpan = 256 << 10;
// The footprint grows in steps of this size, on huge pages if the system has them.
constexpr std::size_t kHuge = Region::kHugePage;
constexpr std::size_t kThreadCacheBytes = 256 << 10;  // most bytes per thread and size class

// Of small blocks. Class 0..15: 64-byte steps to 1 KiB. Then eight classes per doubling.
int class_of(std::size_t bytes) {
  if (bytes <= 1024) return bytes == 0 ? 0 : static_cast<int>((bytes - 1) / 64);
  const int log = std::bit_width(bytes - 1) - 1;  // bytes in (2^log, 2^(log+1)]
  return 16 + (log - 10) * 8 + static_cast<int>((bytes - 1 - (std::size_t{1} << log)) >> (log - 3));
}

std::size_t bytes_of(int size_class) {
  if (size_class < 16) return (static_cast<std::size_t>(size_class) + 1) * 64;
  const int log = (size_class - 16) / 8 + 10, eighth = (size_class - 16) % 8;
  return (std::size_t{1} << log) + ((static_cast<std::size_t>(eighth) + 1) << (log - 3));
}

std::size_t page_rounded(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

std::uint64_t huge_pages(std::uint64_t bytes) { return (bytes + kHuge - 1) / kHuge * kHuge; }

constexpr int kClasses = 16 + 5 * 8;  // kSmallMax == bytes_of(kClasses - 1)

}  // namespace

class Heap::Impl {
 public:
  explicit Impl(std::size_t limit)
      : region_(Region::create(limit)),
        kinds_(mapped_kinds(region_.size() / kPage)),
        id_(next_id()) {}
  ~Impl() {
    std::uint64_t mine = id_;
    live_id().compare_exchange_strong(mine, 0);
    munmap(kinds_, region_.size() / kPage * sizeof(std::uint32_t));
  }

  void* allocate(std::size_t bytes) noexcept {
    if (abandoned_.load(std::memory_order_relaxed)) return nullptr;
    void* block = nullptr;
    std::size_t taken = 0;
    if (bytes <= kSmallMax) {
      const int size_class = class_of(bytes);
      taken = bytes_of(size_class);
      block = allocate_small(size_class);
    } else if (bytes <= region_.size()) {
      taken = page_rounded(bytes);
      block = allocate_large(taken);
    }
    if (block == nullptr) {
      refused_.fetch_add(1, std::memory_order_relaxed);
      return nullptr;
    }
    allocations_.fetch_add(1, std::memory_order_relaxed);
    const auto live = live_.fetch_add(taken, std::memory_order_relaxed) + taken;
    if (live > peak_.load(std::memory_order_relaxed)) peak_.store(live, std::memory_order_relaxed);
    return block;
  }

  void deallocate(void* pointer) noexcept {
    if (abandoned_.load(std::memory_order_relaxed)) return;
    const std::uint32_t kind = kinds_[offset(pointer) / kPage];
    if (kind >= kClasses) {
      const std::size_t bytes = std::size_t{kind - kClasses} * kPage;
      live_.fetch_sub(bytes, std::memory_order_relaxed);
      const std::lock_guard lock(mutex_);
      free_.add(offset(pointer), bytes);
      return;
    }
    const std::size_t bytes = bytes_of(static_cast<int>(kind));
    live_.fetch_sub(bytes, std::memory_order_relaxed);
    if (thread_ends()) {
      const std::lock_guard lock(mutex_);
      small_[kind].push_back(pointer);
      return;
    }
    auto& list = cache().lists[kind];
    list.push_back(pointer);
    // A thread that only frees, such as the reader of another one's tensors, must not collect all.
    if (list.size() * bytes > kThreadCacheBytes) spill(kind, list);
  }

  std::uint64_t offset(const void* pointer) const {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(pointer) - region_.data());
  }
  const Region& region() const { return region_; }
  void before_fork() { mutex_.lock(); }
  void after_fork(bool in_child) {
    if (in_child) abandoned_.store(true);
    mutex_.unlock();
  }
  bool is_of_parent() const { return abandoned_.load(); }
  void renew() {
    std::lock_guard lock(mutex_);  // so that the heap does not grow meanwhile
    region_.renew(top_);
    // The copy has given memory to released pages, too, since they lie below top_.
    for (const auto& range : released_) region_.release(range.at, range.bytes);
  }
  void trim() {
    const std::lock_guard lock(mutex_);
    internal::PageRanges kept;
    for (const auto& range : free_) {
      const std::uint64_t first = huge_pages(range.at), end = range.end() / kHuge * kHuge;
      if (end <= first || !region_.release(first, end - first)) {
        kept.add(range.at, range.bytes);
        continue;
      }
      if (range.at < first) kept.add(range.at, first - range.at);
      if (end < range.end()) kept.add(end, range.end() - end);
      released_.add(first, end - first);
      huge_ -= std::min(huge_, end - first);
    }
    free_ = std::move(kept);
    // Released pages at the end lower top_, so that renew() does not copy them.
    if (released_.empty() || released_.back().end() != top_) return;
    top_ = released_.back().at;
    released_.pop_back();
  }

  HeapStats stats() const {
    std::lock_guard lock(mutex_);
    HeapStats s;
    s.live_bytes = live_.load();
    s.peak_bytes = peak_.load();
    s.footprint_bytes = s.end_bytes = top_;
    for (const auto& range : released_) s.footprint_bytes -= range.bytes;
    s.limit_bytes = region_.size();
    s.huge_bytes = huge_;
    s.allocations = allocations_.load();
    s.reused = s.allocations - grown_.load();
    s.refused = refused_.load();
    return s;
  }

 private:
  struct ThreadCache {
    std::uint64_t owner = 0;  // id of the heap that owns these blocks
    Impl* heap = nullptr;
    std::vector<void*> lists[kClasses];
    ~ThreadCache() {
      if (owner != 0 && owner == live_id().load()) heap->take_back(*this);
      thread_ends() = true;
    }
  };
  // True once this thread's cache has been destroyed. Destructors of other thread-local objects,
  // and of static objects on the main thread, still free blocks then. Has no destructor itself.
  static bool& thread_ends() {
    thread_local bool ends = false;
    return ends;
  }

  static std::uint32_t* mapped_kinds(std::size_t pages) {
    void* data = mmap(nullptr, pages * sizeof(std::uint32_t), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
      throw Error(Errc::kUnavailable, "no address space for the heap's page table");
    return static_cast<std::uint32_t*>(data);
  }
  static std::uint64_t next_id() {
    static std::atomic<std::uint64_t> id{0};
    return live_id() = ++id;
  }
  // The heap of the thread caches: the newest one. Blocks of older heaps are no longer cached by
  // threads.
  static std::atomic<std::uint64_t>& live_id() {
    static std::atomic<std::uint64_t> id{0};
    return id;
  }

  ThreadCache& cache() {
    thread_local ThreadCache cache;
    if (cache.owner != id_) {
      // Another heap's blocks go back only if that heap certainly exists, which is known of the
      // newest one. Otherwise they are dropped, with the memory of a heap that has ended.
      if (cache.owner != 0 && cache.owner == live_id().load()) cache.heap->take_back(cache);
      for (auto& list : cache.lists) list.clear();
      cache.owner = id_;
      cache.heap = this;
    }
    return cache;
  }

  void take_back(ThreadCache& cache) {
    std::lock_guard lock(mutex_);
    for (int c = 0; c < kClasses; ++c) {
      small_[c].insert(small_[c].end(), cache.lists[c].begin(), cache.lists[c].end());
      cache.lists[c].clear();
    }
  }

  // Moves half of a full thread cache to the common list.
  void spill(int size_class, std::vector<void*>& list) {
    std::lock_guard lock(mutex_);
    const std::size_t half = list.size() / 2;
    small_[size_class].insert(small_[size_class].end(), list.begin(),
                              list.begin() + static_cast<std::ptrdiff_t>(half));
    list.erase(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(half));
  }

  void* allocate_small(int size_class) {
    if (thread_ends()) {
      const std::lock_guard lock(mutex_);
      auto& common = small_[size_class];
      if (common.empty() && !add_span(size_class)) return nullptr;
      void* const block = common.back();
      common.pop_back();
      return block;
    }
    auto& list = cache().lists[size_class];
    if (list.empty() && !refill(size_class, list)) return nullptr;
    void* block = list.back();
    list.pop_back();
    return block;
  }

  bool refill(int size_class, std::vector<void*>& list) {
    std::lock_guard lock(mutex_);
    auto& common = small_[size_class];
    if (common.empty() && !add_span(size_class)) return false;
    const std::size_t want =
        std::clamp<std::size_t>(kThreadCacheBytes / 4 / bytes_of(size_class), 1, 64);
    for (std::size_t i = 0; i < want && !common.empty(); ++i) {
      list.push_back(common.back());
      common.pop_back();
    }
    return true;
  }

  // Cuts new blocks for the common list. Called with the lock held.
  bool add_span(int size_class) {
    std::byte* const span = take_pages(kSpan);
    if (span == nullptr) return false;
    const std::size_t bytes = bytes_of(size_class);
    std::fill_n(kinds_ + offset(span) / kPage, kSpan / kPage,
                static_cast<std::uint32_t>(size_class));
    for (std::size_t at = kSpan / bytes * bytes; at >= bytes; at -= bytes)
      small_[size_class].push_back(span + at - bytes);
    return true;
  }

  void* allocate_large(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    std::byte* block = take_pages(bytes);
    if (block != nullptr)
      kinds_[offset(block) / kPage] = static_cast<std::uint32_t>(kClasses + bytes / kPage);
    return block;
  }

  // Free pages at the lowest address where they fit, otherwise new ones. Called with the lock held.
  std::byte* take_pages(std::size_t bytes) {
    std::optional<std::uint64_t> at = free_.take(bytes);
    if (!at && grow(bytes)) at = free_.take(bytes);
    return at ? region_.data() + *at : nullptr;
  }

  // Takes memory from the system: at released pages, otherwise at the end of those in use.
  bool grow(std::size_t bytes) {
    const std::size_t pages = huge_pages(bytes);
    if (const auto at = released_.take(pages)) {
      touch(*at, pages);
      return true;
    }
    // A free range at the end counts, since add() will merge the new memory with it.
    const bool ends_free = !free_.empty() && free_.back().end() == top_;
    const std::size_t missing = bytes - (ends_free ? free_.back().bytes : 0);
    const std::size_t room = region_.size() - top_;
    const std::size_t more = std::min<std::size_t>(huge_pages(missing), room / kPage * kPage);
    if (more < missing) return false;
    touch(top_, more);
    top_ += more;
    return true;
  }

  void touch(std::uint64_t at, std::size_t bytes) {
    grown_.fetch_add(1, std::memory_order_relaxed);
    if (at % kHuge == 0 && bytes % kHuge == 0 && region_.collapse(at, bytes)) huge_ += bytes;
    free_.add(at, bytes);
  }

  Region region_;
  // By page: the size class of its span, or kClasses and the number of pages of the block that
  // begins there.
  std::uint32_t* kinds_;
  const std::uint64_t id_;
  std::atomic<bool> abandoned_{false};
  std::atomic<std::uint64_t> live_{0}, peak_{0}, allocations_{0}, grown_{0}, refused_{0};

  mutable std::mutex mutex_;  // guards all below
  std::size_t top_ = 0;       // the region is untouched from here on
  std::size_t huge_ = 0;
  internal::PageRanges free_;
  internal::PageRanges released_;  // huge pages below top_ that were given back
  std::vector<void*> small_[kClasses];
};

Heap::Heap(std::size_t limit_bytes) : impl_(std::make_unique<Impl>(limit_bytes)) {}
Heap::~Heap() = default;
void* Heap::allocate(std::size_t bytes) noexcept { return impl_->allocate(bytes); }
void Heap::deallocate(void* pointer) noexcept { impl_->deallocate(pointer); }
bool Heap::contains(const void* pointer) const noexcept {
  return impl_->region().contains(pointer);
}
std::uint64_t Heap::offset(const void* pointer) const noexcept { return impl_->offset(pointer); }
int Heap::fd() const noexcept { return impl_->region().fd(); }
std::size_t Heap::size() const noexcept { return impl_->region().size(); }
std::byte* Heap::data() const noexcept { return impl_->region().data(); }
HeapStats Heap::stats() const { return impl_->stats(); }
void Heap::before_fork() noexcept { impl_->before_fork(); }
void Heap::after_fork(bool in_child) noexcept { impl_->after_fork(in_child); }
bool Heap::is_of_parent() const noexcept { return impl_->is_of_parent(); }
void Heap::renew() { impl_->renew(); }
void Heap::trim() { impl_->trim(); }
std::size_t Heap::rounded(std::size_t bytes) noexcept {
  return bytes <= kSmallMax ? bytes_of(class_of(bytes)) : page_rounded(bytes);
}

namespace {

std::string& heap_error() {
  static auto* text = new std::string;
  return *text;
}

std::size_t process_heap_limit() {
  if (const char* set = variable_or_null("WEFT_HEAP_MB"))
    return static_cast<std::size_t>(std::strtoull(set, nullptr, 10)) << 20;
  const auto memory = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
                      static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return memory / 4 * 3;
}

}  // namespace

Heap* process_heap() {
  static Heap* const heap = []() -> Heap* {
    const std::size_t limit = process_heap_limit();
    if (limit == 0) {
      heap_error() = "switched off by WEFT_HEAP_MB=0";
      return nullptr;
    }
    try {
      auto* made = new Heap(limit);
      static Heap* const kept = made;
      pthread_atfork([] { kept->before_fork(); }, [] { kept->after_fork(false); },
                     [] { kept->after_fork(true); });
      return made;
    } catch (const Error& error) {
      heap_error() = error.message();
      return nullptr;
    }
  }();
  return heap;
}

const char* process_heap_error() { return heap_error().c_str(); }

}  // namespace weft::net

// A value in shared memory that one thread at a time writes and anyone reads, without locks.
//
// There are two copies. The writer fills the one that is not current, and then makes it current by
// its sequence number. So a reader finds a whole value even if the writer was stopped or died while
// it wrote (a sequence lock with one copy does not give that). A write costs one store for each
// word and no read-modify-write.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace weft::observe {

// Zeroed memory is its valid initial state: a zeroed T.
template <class T>
class Published {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(std::uint64_t) == 0);

 public:
  // One thread at a time.
  void write(const T& value) noexcept {
    const std::uint32_t next = sequence_.load(std::memory_order_relaxed) + 1;
    auto& copy = copies_[next & 1];
    // No reader may see a new word in this copy before it can see that the other one is current.
    std::atomic_thread_fence(std::memory_order_release);
    const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
    for (std::size_t i = 0; i < kWords; ++i) {  // word by word: a copy of the value costs as much
      std::uint64_t word;
      std::memcpy(&word, bytes + i * sizeof word, sizeof word);
      copy[i].store(word, std::memory_order_relaxed);
    }
    sequence_.store(next, std::memory_order_release);
  }

  // Changes one word of the current value, at `offset` bytes: readers find the old word or the new
  // one. Not counted by writes(). One thread at a time.
  void amend(std::size_t offset, std::uint64_t word) noexcept {
    copies_[sequence_.load(std::memory_order_relaxed) & 1][offset / sizeof word].store(
        word, std::memory_order_relaxed);
  }

  // Any thread or process. A writer that writes all the time could outrun the reader for ever:
  // after many attempts it returns a value whose words may be of two writes.
  T read() const noexcept {
    constexpr int kMostAttempts = 1000;
    Words words{};
    for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
      const std::uint32_t before = sequence_.load(std::memory_order_acquire);
      const auto& copy = copies_[before & 1];
      for (std::size_t i = 0; i < kWords; ++i) words[i] = copy[i].load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (sequence_.load(std::memory_order_relaxed) == before) break;
    }
    return std::bit_cast<T>(words);
  }

  // Number of writes so far, modulo 2^32.
  std::uint32_t writes() const noexcept { return sequence_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kWords = sizeof(T) / sizeof(std::uint64_t);
  using Words = std::array<std::uint64_t, kWords>;

  std::atomic<std::uint32_t> sequence_;
  alignas(64) std::atomic<std::uint64_t> copies_[2][kWords];
};

}  // namespace weft::observe

// A value in shared memory that one thread at a time writes and anyone reads, without locks.
//
// There are two copies, which the writer fills in turn. Each has a number beside its words: the
// number of its write, or kWriting. A reader takes the copy with the larger number, and takes it
// again if the number has changed meanwhile. So it finds a whole value even if the writer was
// stopped or died while it wrote (a sequence lock with one copy does not give that). The number and
// the words of a copy are beside each other in memory, so reading them takes so little time that
// even a writer that never pauses hardly ever changes them meanwhile. A write costs one store for
// each word and two for the number, and no read-modify-write.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace weft::observe {

// Zeroed memory is its valid initial state: a zeroed T.
template <class T>
class Published {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(std::uint64_t) == 0);

 public:
  // One thread at a time.
  void write(const T& value) noexcept {
    const std::uint64_t next = newest().number.load(std::memory_order_relaxed) + 1;
    Copy& copy = copies_[next & 1];
    // No reader may see kWriting before the other copy's number, or a new word before kWriting.
    copy.number.store(kWriting, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_release);
    const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
    for (std::size_t i = 0; i < kWords; ++i) {  // word by word: a copy of the value costs as much
      std::uint64_t word;
      std::memcpy(&word, bytes + i * sizeof word, sizeof word);
      copy.words[i].store(word, std::memory_order_relaxed);
    }
    copy.number.store(next, std::memory_order_release);
  }

  // Changes one word of the current value, at `offset` bytes: readers find the old word or the new
  // one. Not counted by writes(). One thread at a time.
  void amend(std::size_t offset, std::uint64_t word) noexcept {
    newest().words[offset / sizeof word].store(word, std::memory_order_relaxed);
  }

  // Any thread or process. A reader whose copy was overwritten in each of many attempts returns a
  // value whose words may be of two writes.
  T read() const noexcept {
    Words words{};
    for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
      const Copy& copy = newest();
      const std::uint64_t number = copy.number.load(std::memory_order_acquire);
      for (std::size_t i = 0; i < kWords; ++i)
        words[i] = copy.words[i].load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (number != kWriting && copy.number.load(std::memory_order_relaxed) == number) break;
    }
    return std::bit_cast<T>(words);
  }

  // Number of writes so far. Like read(), it gives up when it was overtaken many times.
  std::uint64_t writes() const noexcept {
    std::uint64_t number = kWriting;
    for (int attempt = 0; attempt < kMaxAttempts && number == kWriting; ++attempt)
      number = newest().number.load(std::memory_order_acquire);
    return number;
  }

 private:
  static constexpr std::uint64_t kWriting = ~std::uint64_t{0};
  static constexpr int kMaxAttempts = 1000;
  static constexpr std::size_t kWords = sizeof(T) / sizeof(std::uint64_t);
  using Words = std::array<std::uint64_t, kWords>;

  struct alignas(64) Copy {
    std::atomic<std::uint64_t> number;  // of the write, from 1; 0: none yet
    std::atomic<std::uint64_t> words[kWords];
  };

  // The copy with the larger number. If one is being written, the other one is the newest. The
  // writer may go on between the two loads here, so readers check the number again afterwards.
  Copy& newest() noexcept { return const_cast<Copy&>(std::as_const(*this).newest()); }
  const Copy& newest() const noexcept {
    const std::uint64_t first = copies_[0].number.load(std::memory_order_acquire),
                        second = copies_[1].number.load(std::memory_order_acquire);
    if (first == kWriting) return copies_[1];
    if (second == kWriting) return copies_[0];
    return copies_[first > second ? 0 : 1];
  }

  Copy copies_[2];
};

}  // namespace weft::observe

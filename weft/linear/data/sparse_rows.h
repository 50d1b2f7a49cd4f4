// Sparse rows with labels: the data of a linear model, or the part of it that one rank holds.
//
// A row is a list of entries with ascending columns. All entries lie one after the other in memory
// (compressed sparse rows). An entry has 8 bytes: half of LIBLINEAR's, so a pass over the data
// moves half of the memory. Values are float32; the solvers compute in float64.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <vector>

namespace weft::linear {

// One value of a row. Columns count from 0: index 1 of a LIBSVM file is column 0.
struct Entry {
  std::uint32_t column = 0;
  float value = 0;
};

// Column of the constant feature that LibsvmOptions::bias appends to each row.
inline constexpr std::uint32_t kBiasColumn = 0xffffffff;

// Allocates arrays of at least 4 MiB on huge pages, if the system has them. Rows in random order
// then cause few TLB misses: a pass takes a fifth less time.
template <class T>
struct HugePageAllocator {
  using value_type = T;
  static constexpr std::size_t kHuge = std::size_t{2} << 20, kLeast = 2 * kHuge;

  HugePageAllocator() = default;
  template <class U>
  HugePageAllocator(const HugePageAllocator<U>&) {}  // NOLINT: allocators convert

  T* allocate(std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    if (bytes < kLeast) return static_cast<T*>(::operator new(bytes));
    void* const block = ::operator new(bytes, std::align_val_t(kHuge));
    ::madvise(block, bytes / kHuge * kHuge, MADV_HUGEPAGE);  // a hint, which may be refused
    return static_cast<T*>(block);
  }
  void deallocate(T* block, std::size_t count) noexcept {
    if (count * sizeof(T) < kLeast)
      ::operator delete(block);
    else
      ::operator delete(block, std::align_val_t(kHuge));
  }
  bool operator==(const HugePageAllocator&) const { return true; }
};

struct SparseRows {
  std::vector<double> labels;            // One for each row.
  std::vector<std::uint64_t> begins{0};  // Row i is entries [begins[i], begins[i + 1]).
  std::vector<Entry, HugePageAllocator<Entry>> entries;

  std::size_t size() const { return labels.size(); }
  std::span<const Entry> row(std::size_t i) const {
    return {entries.data() + begins[i], entries.data() + begins[i + 1]};
  }
  // Appends a row. Its columns must ascend.
  void add(double label, std::span<const Entry> row) {
    entries.insert(entries.end(), row.begin(), row.end());
    end_row(label);
  }
  // Ends a row whose entries were appended to `entries`.
  void end_row(double label) {
    labels.push_back(label);
    begins.push_back(entries.size());
  }
  // Bytes of memory that the rows take.
  std::uint64_t bytes() const {
    return entries.capacity() * sizeof(Entry) + begins.capacity() * sizeof(std::uint64_t) +
           labels.capacity() * sizeof(double);
  }
};

}  // namespace weft::linear

#include "weft/linear/data/transpose.h"

#include <cstring>

#include "weft/base/error.h"

namespace weft::linear {
namespace {

struct Triple {
  std::uint32_t place = 0;  // Of the column among its owner's.
  std::uint32_t row = 0;
  float value = 0;
};

template <class F>
void for_each(const std::vector<std::string>& packed, F&& f) {
  for (const std::string& bytes : packed) {
    for (std::size_t at = 0; at + sizeof(Triple) <= bytes.size(); at += sizeof(Triple)) {
      Triple triple;
      std::memcpy(&triple, bytes.data() + at, sizeof triple);
      f(triple);
    }
  }
}

}  // namespace

std::vector<std::string> pack_columns(const SparseRows& rows, std::uint32_t first_row, int ranks) {
  const auto k = static_cast<std::uint32_t>(ranks);
  std::vector<std::size_t> sizes(k);
  for (const Entry& entry : rows.entries) ++sizes[entry.column % k];
  std::vector<std::string> packed(k);
  for (std::uint32_t owner = 0; owner < k; ++owner)
    packed[owner].reserve(sizes[owner] * sizeof(Triple));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (const Entry& entry : rows.row(i)) {
      const Triple triple{entry.column / k, first_row + static_cast<std::uint32_t>(i), entry.value};
      packed[entry.column % k].append(reinterpret_cast<const char*>(&triple), sizeof triple);
    }
  }
  return packed;
}

SparseRows unpack_columns(const std::vector<std::string>& packed, std::uint32_t count) {
  SparseRows columns;
  columns.labels.assign(count, 0);
  columns.begins.assign(std::size_t{count} + 1, 0);
  for_each(packed, [&](const Triple& triple) {
    if (triple.place >= count) throw Error(Errc::kCorrupt, "an entry of a column of another rank");
    ++columns.begins[triple.place + 1];
  });
  for (std::size_t i = 0; i < count; ++i) columns.begins[i + 1] += columns.begins[i];
  columns.entries.resize(columns.begins.back());
  std::vector<std::uint64_t> next(columns.begins.begin(), columns.begins.end() - 1);
  for_each(packed, [&](const Triple& triple) {
    columns.entries[next[triple.place]++] = {triple.row, triple.value};
  });
  return columns;
}

}  // namespace weft::linear

// LIBSVM files: text in pieces of any size, whole and divided over ranks, plain and gzip.
#include "weft/linear/data/libsvm.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>

#include "tests/fuzz/fuzz.h"
#include "weft/linear/data/internal/libsvm_parser.h"

using weft::Errc;
using weft::fuzz::accepts;
using weft::fuzz::check;
using weft::linear::LibsvmOptions;
using weft::linear::SparseRows;

namespace {

void check_rows(const SparseRows& rows, const LibsvmOptions& options) {
  check(rows.begins.size() == rows.size() + 1 && rows.begins.back() == rows.entries.size(),
        "the rows cover the entries");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    check(std::isfinite(rows.labels[i]), "labels are finite");
    std::int64_t last = -1;
    for (const auto& entry : rows.row(i)) {
      check(entry.column > last, "columns ascend");
      check(entry.column <= options.max_index, "columns are within the limit");
      check(std::isfinite(entry.value) && entry.value != 0, "values are finite and not zero");
      last = entry.column;
    }
  }
}

bool same(const SparseRows& a, const SparseRows& b) {
  return a.labels == b.labels && a.begins == b.begins &&
         (a.entries.empty() || std::memcmp(a.entries.data(), b.entries.data(),
                                           a.entries.size() * sizeof(a.entries[0])) == 0);
}

// The text in pieces of `size` bytes. False if it is refused.
bool parse(std::string_view text, std::size_t size, const LibsvmOptions& options,
           SparseRows& rows) {
  return accepts({Errc::kCorrupt}, [&] {
    weft::linear::internal::LibsvmParser parser("input", options, {}, rows);
    for (; !text.empty(); text.remove_prefix(std::min(size, text.size())))
      parser.feed(text.substr(0, size));
    parser.finish();
  });
}

void check_files(const std::string& path, const LibsvmOptions& options, const SparseRows& whole) {
  std::size_t rows = 0;
  for (int rank = 0; rank < 3; ++rank) {
    LibsvmOptions part = options;
    part.rank = rank, part.world = 3;
    rows += weft::linear::read_libsvm(path, part).size();
  }
  check(rows == whole.size(), "each row belongs to one rank");
}

}  // namespace

void weft::fuzz::one_input(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, size);
  const auto flags = bytes.number<std::uint8_t>();
  LibsvmOptions options{.max_index = 1'000'000, .zero_based = (flags & 1) != 0};
  const std::string_view text = bytes.rest();
  SparseRows whole, pieces;
  const bool accepted = parse(text, text.size() + 1, options, whole);
  check(parse(text, 1 + flags / 2, options, pieces) == accepted,
        "the pieces do not decide whether a text is accepted");
  if (accepted) {
    check(same(whole, pieces), "the pieces do not change the rows");
    check_rows(whole, options);
  }
  const int file = ::memfd_create("fuzz", 0);
  check(file >= 0 && ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()),
        "the input can be written to a file");
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  accepts({Errc::kCorrupt}, [&] {
    const auto rows = weft::linear::read_libsvm(path, options);
    check_rows(rows, options);
    check_files(path, options, rows);
  });
  ::close(file);
}

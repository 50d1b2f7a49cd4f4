// IDX files, plain and gzip.
#include "weft/data/internal/idx.h"

#include <sys/mman.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

using weft::Errc;
using weft::fuzz::accepts;
using weft::fuzz::check;

void weft::fuzz::one_input(const std::uint8_t* data, std::size_t size) {
  const int file = ::memfd_create("fuzz", 0);
  check(file >= 0 && ::write(file, data, size) == static_cast<ssize_t>(size),
        "the input can be written to a file");
  accepts({Errc::kCorrupt}, [&] {
    const auto array =
        weft::data::read_idx("/proc/self/fd/" + std::to_string(file), {.max_bytes = 32 << 20});
    std::int64_t expected = 1;
    for (const std::int64_t extent : array.shape) expected *= extent;
    check(!array.shape.empty() && static_cast<std::int64_t>(array.values.size()) == expected,
          "as many values as the shape says");
  });
  ::close(file);
}

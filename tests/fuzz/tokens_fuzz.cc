// Token files: as they are, and with the right checksum in their header.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "weft/base/crc32c.h"
#include "weft/data/text/internal/token_header.h"

using weft::Errc;
using weft::fuzz::accepts;
using weft::fuzz::check;
using namespace weft::data::text;

namespace {

void open_file(const std::string& bytes) {
  const int file = ::memfd_create("fuzz", 0);
  check(
      file >= 0 && ::write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
      "the input can be written to a file");
  accepts({Errc::kCorrupt}, [&] {
    const TokenFile tokens = TokenFile::open("/proc/self/fd/" + std::to_string(file));
    check(tokens.size() >= 0 && static_cast<std::size_t>(tokens.size()) <= bytes.size(),
          "no more tokens than bytes");
    const internal::TokenHeader header =
        internal::parse_token_header(bytes, static_cast<std::int64_t>(bytes.size()), "fuzz");
    check(internal::render_token_header(header) == bytes.substr(0, internal::kTokenHeaderBytes),
          "a header is written as it was read");
    check(tokens.find_end(0, tokens.size()) <= tokens.size(), "a document ends in the file");
    std::vector<std::int64_t> all(static_cast<std::size_t>(tokens.size()));
    tokens.read(0, all);
    for (const std::int64_t token : all)
      check(token >= 0 && token < tokens.info().vocab_size, "tokens are in the vocabulary");
    tokens.verify();
  });
  ::close(file);
}

}  // namespace

void weft::fuzz::one_input(const std::uint8_t* data, std::size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  open_file(bytes);
  if (size < internal::kTokenHeaderBytes) return;
  const std::uint32_t sum = weft::crc32c(bytes.data(), 60);
  std::memcpy(bytes.data() + 60, &sum, sizeof sum);
  open_file(bytes);
}

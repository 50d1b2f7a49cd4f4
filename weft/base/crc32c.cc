#include "weft/base/crc32c.h"

#include <array>
#include <cstring>

#include "weft/base/error.h"
#include "weft/base/internal/crc32c_paths.h"
#ifdef __x86_64__
#include <nmmintrin.h>
#endif

namespace weft {
namespace internal {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // reflected

constexpr auto kTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t state = byte;
    for (int bit = 0; bit < 8; ++bit) state = state >> 1 ^ (state & 1 ? kPolynomial : 0);
    table[byte] = state;
  }
  return table;
}();

#ifdef __x86_64__
// The instruction takes three cycles but starts one each cycle, so three streams run at once, each
// over kStream bytes.
constexpr std::size_t kStream = 1024;

// The effect of kStream zero bytes on a state. It is linear in the state's bits, so there is one
// table for each byte of the state.
const auto& zeros_table() {
  static const auto kZeros = [] {
    std::array<std::array<std::uint32_t, 256>, 4> tables{};
    const std::array<unsigned char, kStream> zeros{};
    for (std::uint32_t part = 0; part < 4; ++part) {
      for (std::uint32_t byte = 0; byte < 256; ++byte)
        tables[part][byte] = crc32c_table(zeros.data(), kStream, byte << (8 * part));
    }
    return tables;
  }();
  return kZeros;
}

std::uint64_t after_zeros(std::uint64_t state) {
  const auto& t = zeros_table();
  return t[0][state & 255] ^ t[1][state >> 8 & 255] ^ t[2][state >> 16 & 255] ^
         t[3][state >> 24 & 255];
}

std::uint64_t load(const unsigned char* data) {
  std::uint64_t word;
  std::memcpy(&word, data, sizeof word);
  return word;
}
#endif

}  // namespace

std::uint32_t crc32c_table(const unsigned char* data, std::size_t bytes, std::uint32_t state) {
  for (std::size_t i = 0; i < bytes; ++i) state = state >> 8 ^ kTable[(state ^ data[i]) & 255];
  return state;
}

#ifdef __x86_64__
bool crc32c_has_instruction() { return __builtin_cpu_supports("sse4.2"); }

__attribute__((target("sse4.2"))) std::uint32_t crc32c_instruction(const unsigned char* data,
                                                                   std::size_t bytes,
                                                                   std::uint32_t state) {
  std::uint64_t first = state;
  for (; bytes >= 3 * kStream; data += 3 * kStream, bytes -= 3 * kStream) {
    std::uint64_t second = 0, third = 0;
    for (std::size_t i = 0; i < kStream; i += 8) {
      first = _mm_crc32_u64(first, load(data + i));
      second = _mm_crc32_u64(second, load(data + kStream + i));
      third = _mm_crc32_u64(third, load(data + 2 * kStream + i));
    }
    first = after_zeros(after_zeros(first) ^ second) ^ third;
  }
  for (; bytes >= 8; data += 8, bytes -= 8) first = _mm_crc32_u64(first, load(data));
  auto rest = static_cast<std::uint32_t>(first);
  for (; bytes > 0; ++data, --bytes) rest = _mm_crc32_u8(rest, *data);
  return rest;
}
#else
bool crc32c_has_instruction() { return false; }

std::uint32_t crc32c_instruction(const unsigned char*, std::size_t, std::uint32_t) {
  throw Error(Errc::kInternal, "this processor has no crc32c instruction that weft uses");
}
#endif

}  // namespace internal

std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t crc) {
  static const auto kPath = internal::crc32c_can_fold()          ? internal::crc32c_fold
                            : internal::crc32c_has_instruction() ? internal::crc32c_instruction
                                                                 : internal::crc32c_table;
  return ~kPath(static_cast<const unsigned char*>(data), bytes, ~crc);
}

}  // namespace weft

// CRC32C by carry-less multiplication (Gopal et al., "Fast CRC Computation for Generic Polynomials
// Using PCLMULQDQ", Intel 2009): 256 bytes at a time, in 16 lanes of 128 bits that are moved
// forward by multiplying with x^distance mod P.
#include <array>
#include <cstdint>

#include "weft/base/error.h"
#include "weft/base/internal/crc32c_paths.h"
#ifdef __x86_64__
#ifndef __clang__
#pragma GCC diagnostic ignored \
    "-Wmaybe-uninitialized"  // g++ 12's own headers, for any use of these intrinsics
#endif
#include <immintrin.h>
#endif

namespace weft::internal {
#ifdef __x86_64__
namespace {

// x^n mod P, its bits reflected and shifted by one: the product of two reflected factors is one bit
// short.
constexpr std::uint64_t power(int n) {
  std::uint32_t rest = 1;
  for (int i = 0; i < n; ++i) rest = rest << 1 ^ ((rest & 0x80000000U) != 0 ? 0x1EDC6F41U : 0U);
  std::uint32_t reflected = 0;
  for (int bit = 0; bit < 32; ++bit) reflected |= (rest >> bit & 1U) << (31 - bit);
  return std::uint64_t{reflected} << 1;
}

// What moves a lane forward by `bits`: for its low half, which comes first, and its high half.
constexpr std::uint64_t low(int bits) { return power(bits + 32); }
constexpr std::uint64_t high(int bits) { return power(bits - 32); }

constexpr std::uint64_t kBy2048[] = {low(2048), high(2048)};
constexpr std::uint64_t kBy512[] = {low(512), high(512)};
constexpr std::uint64_t kToLast[] = {low(384), high(384), low(256), high(256), low(128), high(128)};

#define WEFT_FOLD __attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.2"), always_inline)) inline

WEFT_FOLD __m512i fold(__m512i lanes, __m512i by, __m512i onto) {
  constexpr int kXor = 0x96;  // of three
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(lanes, by, 0x00),
                                   _mm512_clmulepi64_epi128(lanes, by, 0x11), onto, kXor);
}

WEFT_FOLD __m512i at(const unsigned char* data) { return _mm512_loadu_si512(data); }

}  // namespace

bool crc32c_can_fold() {
  return crc32c_has_instruction() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("pclmul");
}

__attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.2"))) std::uint32_t crc32c_fold(
    const unsigned char* data, std::size_t bytes, std::uint32_t state) {
  if (bytes < 512) return crc32c_instruction(data, bytes, state);
  const __m512i first = _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state)));
  __m512i x0 = _mm512_xor_si512(at(data), first), x1 = at(data + 64), x2 = at(data + 128),
          x3 = at(data + 192);
  const __m512i by =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kBy2048)));
  for (data += 256, bytes -= 256; bytes >= 256; data += 256, bytes -= 256) {
    x0 = fold(x0, by, at(data));
    x1 = fold(x1, by, at(data + 64));
    x2 = fold(x2, by, at(data + 128));
    x3 = fold(x3, by, at(data + 192));
  }
  const __m512i by_512 =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kBy512)));
  x3 = fold(fold(fold(x0, by_512, x1), by_512, x2), by_512, x3);
  // Three lanes onto the fourth, which stays.
  const __m512i to_last = _mm512_maskz_loadu_epi64(0x3F, kToLast);
  const __m512i moved = fold(x3, to_last, _mm512_setzero_si512());
  const __m128i last = _mm_xor_si128(
      _mm_xor_si128(_mm512_extracti32x4_epi32(moved, 0), _mm512_extracti32x4_epi32(moved, 1)),
      _mm_xor_si128(_mm512_extracti32x4_epi32(moved, 2), _mm512_extracti32x4_epi32(x3, 3)));
  alignas(16) std::array<unsigned char, 16> rest;
  _mm_store_si128(reinterpret_cast<__m128i*>(rest.data()), last);
  return crc32c_instruction(data, bytes, crc32c_instruction(rest.data(), rest.size(), 0));
}
#undef WEFT_FOLD
#else
bool crc32c_can_fold() { return false; }

std::uint32_t crc32c_fold(const unsigned char*, std::size_t, std::uint32_t) {
  throw Error(Errc::kInternal, "this processor has no carry-less multiplication that weft uses");
}
#endif

}  // namespace weft::internal

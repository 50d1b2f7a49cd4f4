// The ways of crc32c(), apart, so that tests can compare them. All take and give the bare register:
// not inverted.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::internal {

std::uint32_t crc32c_table(const unsigned char* data, std::size_t bytes, std::uint32_t state);

// Only where crc32c_has_instruction(); elsewhere throws kInternal.
std::uint32_t crc32c_instruction(const unsigned char* data, std::size_t bytes, std::uint32_t state);
bool crc32c_has_instruction();

// Only where crc32c_can_fold() (AVX-512 with VPCLMULQDQ); elsewhere throws kInternal.
std::uint32_t crc32c_fold(const unsigned char* data, std::size_t bytes, std::uint32_t state);
bool crc32c_can_fold();

}  // namespace weft::internal

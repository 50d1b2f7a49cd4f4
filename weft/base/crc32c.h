// CRC32C (Castagnoli, as in iSCSI, RFC 3720): of net frames and of TensorBoard's event files. Uses
// the processor's carry-less multiplication (AVX-512; as fast as the bytes come out of the cache),
// else its CRC instruction (SSE4.2; three streams at once, tens of GB/s), else a table (some 0.4
// GB/s).
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

// The checksum of `bytes` bytes; `crc` is that of what came before: crc32c(b, n, crc32c(a, m)) is
// the one of a then b.
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t crc = 0);

}  // namespace weft

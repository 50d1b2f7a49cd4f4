// The last file written into a checkpoint: the size of each file and a checksum of each of its
// chunks.
//
//   weft-checkpoint 2
//   chunk 1048576                                             bytes of a chunk
//   file 2097200 model-00001-of-00002.safetensors 0f3a55c1 93b1e7aa 00a1b2c3
//   file 178 state.json 5d1c02ef
//   end 5d1c02ef                                              checksum of all that is above
//
// Version 1 has one checksum for each file: "crc32c 0f3a55c1 44701234 model.safetensors".
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace weft::checkpoint::internal {

// Chunk size of new files, and the limit for files that are read.
constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;

struct FileSums {
  std::int64_t bytes = 0;
  std::vector<std::uint32_t> chunks;  // CRC-32C of each chunk, the last one shorter
  bool operator==(const FileSums&) const = default;
};

struct Manifest {
  std::int64_t chunk_bytes = kChunkBytes;  // 0, in version 1: a file is one chunk
  std::map<std::string, FileSums> files;   // by name
  bool operator==(const Manifest&) const = default;
};

constexpr std::size_t kMaxNameBytes = 128;  // of a file

// Whether a name has only letters, digits, '.', '_' and '-' and does not start with '.', so that
// the path cannot leave its folder. Longer names than kMaxNameBytes are not plain.
bool is_plain_name(std::string_view name);

// Returns the number of chunks of a file of so many bytes.
std::int64_t chunks_of(std::int64_t bytes, std::int64_t chunk_bytes);

std::string render_manifest(const Manifest& manifest);
// Parses a manifest. Throws Error(kCorrupt) with the file's name.
Manifest parse_manifest(const std::string& text, const std::string& file);

}  // namespace weft::checkpoint::internal

// The last file written into a checkpoint: what the others must be.
//
//   weft-checkpoint 1
//   crc32c 0f3a55c1 44701234 model.safetensors
//   crc32c 93b1e7aa 178 state.json
//   end 5d1c02ef                                   checksum of all that is above
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace weft::checkpoint::internal {

struct FileSum {
  std::uint32_t crc = 0;
  std::int64_t bytes = 0;
  bool operator==(const FileSum&) const = default;
};

using Manifest = std::map<std::string, FileSum>;  // by name

// A name without folders, of letters, digits, '.', '_' and '-', not starting with '.': such a path cannot leave its folder.
bool is_plain_name(std::string_view name);

std::string render_manifest(const Manifest& manifest);
// Throws Error(kCorrupt) naming the file.
Manifest parse_manifest(const std::string& text, const std::string& file);

}  // namespace weft::checkpoint::internal

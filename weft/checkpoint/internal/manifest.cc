#include "weft/checkpoint/internal/manifest.h"

#include <algorithm>
#include <sstream>

#include "weft/base/crc32c.h"
#include "weft/base/error.h"
#include "weft/base/text/numbers.h"

namespace weft::checkpoint::internal {
namespace {

constexpr const char *kTitle1 = "weft-checkpoint 1", *kTitle2 = "weft-checkpoint 2";

std::string hex8(std::uint32_t value) { return formatted("%08x", value); }

std::string end_line(const std::string& body) {
  return "end " + hex8(crc32c(body.data(), body.size())) + "\n";
}

// A line of version 1: "crc32c SUM BYTES NAME".
bool read_line_1(std::istringstream& words, std::string& name, FileSums& sums) {
  std::string kind;
  std::uint32_t sum = 0;
  words >> kind >> std::hex >> sum >> std::dec >> sums.bytes >> name;
  sums.chunks = {sum};
  return words && kind == "crc32c" && sums.bytes >= 0;
}

// A line of version 2: "file BYTES NAME SUM…".
bool read_line_2(std::istringstream& words, std::int64_t chunk_bytes, std::string& name,
                 FileSums& sums) {
  std::string kind;
  words >> kind >> sums.bytes >> name >> std::hex;
  if (!words || kind != "file" || sums.bytes < 0) return false;
  for (std::uint32_t sum = 0; words >> sum;) sums.chunks.push_back(sum);
  return words.eof() &&
         static_cast<std::int64_t>(sums.chunks.size()) == chunks_of(sums.bytes, chunk_bytes);
}

}  // namespace

bool is_plain_name(std::string_view name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= kMaxNameBytes && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), plain);
}

std::int64_t chunks_of(std::int64_t bytes, std::int64_t chunk_bytes) {
  if (chunk_bytes == 0) return 1;
  return bytes / chunk_bytes + (bytes % chunk_bytes != 0 ? 1 : 0);
}

std::string render_manifest(const Manifest& manifest) {
  const bool first_version = manifest.chunk_bytes == 0;
  std::string body = std::string(first_version ? kTitle1 : kTitle2) + "\n";
  if (!first_version) body += "chunk " + std::to_string(manifest.chunk_bytes) + "\n";
  for (const auto& [name, sums] : manifest.files) {
    const std::string bytes = std::to_string(sums.bytes);
    if (first_version) {
      body += "crc32c " + hex8(sums.chunks.at(0)) + " " + bytes + " " + name + "\n";
      continue;
    }
    body += "file " + bytes + " " + name;
    for (const std::uint32_t sum : sums.chunks) body += " " + hex8(sum);
    body += "\n";
  }
  return body + end_line(body);
}

Manifest parse_manifest(const std::string& text, const std::string& file) {
  const auto fail = [&](const std::string& what) -> Error {
    return {Errc::kCorrupt, file + ": " + what};
  };
  // The end line is checked first; it proves that the text above it is undamaged.
  const std::size_t end = text.rfind("end ");
  if (end == std::string::npos || text.substr(end) != end_line(text.substr(0, end)))
    throw fail("truncated or damaged");
  std::istringstream lines(text.substr(0, end));
  std::string line;
  std::getline(lines, line);
  if (line != kTitle1 && line != kTitle2) {
    throw fail("is \"" + line + "\", not \"" + kTitle2 + "\"; a newer weft may have written it");
  }
  Manifest manifest{.chunk_bytes = 0, .files = {}};
  if (line == kTitle2) {
    std::string chunk;
    std::getline(lines, line);
    std::istringstream words(line);
    words >> chunk >> manifest.chunk_bytes;
    if (!words || chunk != "chunk" || manifest.chunk_bytes < 1 ||
        manifest.chunk_bytes > kChunkBytes)
      throw fail("bad line \"" + line + "\"");
  }
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string name;
    FileSums sums;
    const bool good = manifest.chunk_bytes == 0
                          ? read_line_1(words, name, sums)
                          : read_line_2(words, manifest.chunk_bytes, name, sums);
    if (!good || !is_plain_name(name) || !manifest.files.emplace(name, sums).second) {
      throw fail("bad line \"" + line.substr(0, 200) + "\"");
    }
  }
  return manifest;
}

}  // namespace weft::checkpoint::internal

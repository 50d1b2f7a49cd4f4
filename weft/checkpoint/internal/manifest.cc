#include "weft/checkpoint/internal/manifest.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "weft/base/crc32c.h"
#include "weft/base/error.h"

namespace weft::checkpoint::internal {
namespace {

constexpr const char* kTitle = "weft-checkpoint 1";

std::string hex8(std::uint32_t value) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", value);
  return text;
}

std::string end_line(const std::string& body) { return "end " + hex8(crc32c(body.data(), body.size())) + "\n"; }

}  // namespace

bool is_plain_name(std::string_view name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= 128 && name.front() != '.' && std::all_of(name.begin(), name.end(), plain);
}

std::string render_manifest(const Manifest& manifest) {
  std::string body = std::string(kTitle) + "\n";
  for (const auto& [name, sum] : manifest) body += "crc32c " + hex8(sum.crc) + " " + std::to_string(sum.bytes) + " " + name + "\n";
  return body + end_line(body);
}

Manifest parse_manifest(const std::string& text, const std::string& file) {
  const auto fail = [&](const std::string& what) -> Error { return {Errc::kCorrupt, file + ": " + what}; };
  // The end line first: below it, the text is what was written.
  const std::size_t end = text.rfind("end ");
  if (end == std::string::npos || text.substr(end) != end_line(text.substr(0, end))) throw fail("truncated or damaged");
  std::istringstream lines(text.substr(0, end));
  std::string line;
  std::getline(lines, line);
  if (line != kTitle) throw fail("is \"" + line + "\", not \"" + kTitle + "\"; a newer weft may have written it");
  Manifest manifest;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string kind, name;
    FileSum sum;
    words >> kind >> std::hex >> sum.crc >> std::dec >> sum.bytes >> name;
    if (!words || kind != "crc32c" || sum.bytes < 0 || !is_plain_name(name) || !manifest.emplace(name, sum).second) {
      throw fail("bad line \"" + line + "\"");
    }
  }
  return manifest;
}

}  // namespace weft::checkpoint::internal

// The characters with which tokenizer.json writes bytes (GPT-2, Radford et al. 2019). Printable
// Latin-1 stands for itself. The other 68 bytes are U+0100 and following, in their order.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "weft/data/text/internal/characters.h"

namespace weft::data::text::internal {

constexpr std::array<std::uint16_t, 256> make_byte_characters() {
  std::array<std::uint16_t, 256> characters{};
  std::uint16_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    characters[byte] = itself ? static_cast<std::uint16_t>(byte) : next++;
  }
  return characters;
}
inline constexpr std::array<std::uint16_t, 256> kByteCharacters = make_byte_characters();

// Returns the bytes that this text stands for, or nullopt if a character stands for no byte.
inline std::optional<std::string> bytes_of(std::string_view written) {
  static constexpr auto kBytes = [] {
    std::array<std::int16_t, 0x144> bytes{};
    bytes.fill(-1);
    for (unsigned byte = 0; byte < 256; ++byte)
      bytes[kByteCharacters[byte]] = static_cast<std::int16_t>(byte);
    return bytes;
  }();
  std::string bytes;
  for (std::size_t at = 0; at < written.size();) {
    const Character character = character_at(written, at);
    if (!character.valid || character.code >= kBytes.size() || kBytes[character.code] < 0)
      return std::nullopt;
    bytes += static_cast<char>(kBytes[character.code]);
    at += character.length;
  }
  return bytes;
}

inline std::string written_as(std::string_view bytes) {
  std::string written;
  for (const char byte : bytes)
    append_utf8(written, kByteCharacters[static_cast<unsigned char>(byte)]);
  return written;
}

}  // namespace weft::data::text::internal

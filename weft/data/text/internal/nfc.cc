#include "weft/data/text/internal/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "weft/base/error.h"
#include "weft/data/text/internal/characters.h"

namespace weft::data::text::internal {
namespace {

// U+11A7 does not compose with any character. utf8proc 2.8 drops it after a Hangul syllable,
// because it treats it as an empty trailing consonant.
constexpr std::uint32_t kNoTrailingConsonant = 0x11A7;

void append_nfc(std::string& out, std::string_view valid) {
  utf8proc_uint8_t* text = nullptr;
  const auto* const begin = reinterpret_cast<const utf8proc_uint8_t*>(valid.data());
  constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const utf8proc_ssize_t size =
      utf8proc_map(begin, static_cast<utf8proc_ssize_t>(valid.size()), &text, kOptions);
  if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  WEFT_CHECK(size >= 0, utf8proc_errmsg(size));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(text, std::free);
  out.append(reinterpret_cast<const char*>(text), static_cast<std::size_t>(size));
}

}  // namespace

std::string nfc(std::string_view text) {
  // The first character that composes with the one before it is U+0300, whose first byte is 0xCC.
  if (std::none_of(text.begin(), text.end(),
                   [](char c) { return static_cast<unsigned char>(c) >= 0xCC; }))
    return std::string(text);
  std::string out;
  out.reserve(text.size());
  for (std::size_t begin = 0, at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    const std::size_t end = at + character.length;
    const bool apart = !character.valid || character.code == kNoTrailingConsonant;
    if (apart && at > begin) append_nfc(out, text.substr(begin, at - begin));
    if (apart) {
      out += text.substr(at, character.length);
      begin = end;
    } else if (end == text.size()) {
      append_nfc(out, text.substr(begin));
    }
    at = end;
  }
  return out;
}

}  // namespace weft::data::text::internal

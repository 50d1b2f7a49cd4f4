#include "weft/base/json/json_writer.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "weft/base/internal/utf8.h"

namespace weft {

std::string json_quote(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (std::size_t at = 0; at < text.size();) {
    const auto c = static_cast<unsigned char>(text[at]);
    const std::size_t length = internal::utf8_length(text, at);
    if (length == 0) {
      out += "\xEF\xBF\xBD";  // U+FFFD
    } else if (c == '"' || c == '\\') {
      out += {'\\', static_cast<char>(c)};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c < 0x20 || c == 0x7F) {
      out += {'\\', 'u', '0', '0', kHex[c >> 4], kHex[c & 15]};
    } else {
      out.append(text, at, length);
    }
    at += std::max<std::size_t>(length, 1);
  }
  return out + "\"";
}

std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return {text, end};
}

JsonWriter& JsonWriter::key(std::string_view name) {
  value(name);
  text_ += style_ == JsonStyle::kSpaced ? ": " : ":";
  follows_ = false;
  return *this;
}

JsonWriter& JsonWriter::raw(std::string_view json) {
  if (follows_) text_ += style_ == JsonStyle::kSpaced ? ", " : ",";
  text_ += json;
  follows_ = true;
  return *this;
}

JsonWriter& JsonWriter::begin(char bracket) {
  raw({&bracket, 1});
  follows_ = false;
  return *this;
}

JsonWriter& JsonWriter::end(char bracket) {
  text_ += bracket;
  follows_ = true;
  return *this;
}

}  // namespace weft

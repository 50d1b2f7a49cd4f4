#include "weft/checkpoint/internal/json.h"

#include <limits>

#include "weft/base/error.h"

namespace weft::checkpoint::internal {
namespace {

// Bytes of the sequence that starts at text[at], or 0 if it is not valid (RFC 3629: nothing overlong, no surrogate, at most U+10FFFF).
std::size_t sequence_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned lead = byte(at);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  std::uint32_t code = lead & (0xff >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(at + i) & 0x3f);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool valid = lead >= 0xc0 && lead < 0xf8 && code >= kLeast[length] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return valid ? length : 0;
}

// The offset of the first byte that is not UTF-8; npos if there is none.
std::size_t find_invalid(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = sequence_length(text, at);
    if (length == 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

void append_utf8(std::string& out, std::uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr unsigned kLead[] = {0, 0xc0, 0xe0, 0xf0};
  out += static_cast<char>(kLead[more] | code >> (6 * more));
  for (int i = more - 1; i >= 0; --i) out += static_cast<char>(0x80 | (code >> (6 * i) & 0x3f));
}

}  // namespace

JsonReader::JsonReader(std::string_view text, std::string file, std::size_t offset) : text_(text), file_(std::move(file)), offset_(offset) {
  const std::size_t invalid = find_invalid(text_);
  if (invalid == std::string_view::npos) return;
  at_ = invalid;
  fail("not UTF-8");
}

void JsonReader::fail(const std::string& what) const {
  throw Error(Errc::kCorrupt, file_ + ": offset " + std::to_string(offset_ + at_) + ": " + what);
}

void JsonReader::skip_blanks() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
}

bool JsonReader::take(char punctuation) {
  skip_blanks();
  if (at_ >= text_.size() || text_[at_] != punctuation) return false;
  ++at_;
  return true;
}

void JsonReader::expect(char punctuation) {
  if (!take(punctuation)) fail(std::string("expected '") + punctuation + "'");
}

void JsonReader::expect_end() {
  skip_blanks();
  if (at_ < text_.size()) fail("text after the end of the header");
}

std::string JsonReader::string() {
  expect('"');
  std::string out;
  for (;;) {
    if (at_ >= text_.size()) fail("a string without end");
    const char c = text_[at_++];
    if (c == '"') return out;
    if (static_cast<unsigned char>(c) < 0x20) fail("a control character in a string");
    if (c == '\\') {
      escape(out);
    } else {
      out += c;
    }
  }
}

void JsonReader::escape(std::string& out) {
  const char c = at_ < text_.size() ? text_[at_++] : '\0';
  constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
  const std::size_t simple = kFrom.find(c);
  if (simple != std::string_view::npos) {
    out += kTo[simple];
    return;
  }
  if (c != 'u') fail("an unknown escape in a string");
  std::uint32_t code = hex4();
  if (code >= 0xd800 && code < 0xdc00 && text_.substr(at_, 2) == "\\u") {
    at_ += 2;
    const std::uint32_t low = hex4();
    if (low < 0xdc00 || low > 0xdfff) fail("half a surrogate pair in a string");
    code = 0x10000 + (code - 0xd800) * 0x400 + (low - 0xdc00);
  }
  if (code >= 0xd800 && code <= 0xdfff) fail("half a surrogate pair in a string");
  append_utf8(out, code);
}

std::uint32_t JsonReader::hex4() {
  std::uint32_t code = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = at_ < text_.size() ? text_[at_++] : '\0';
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) fail("a bad \\u escape in a string");
    code = code * 16 + static_cast<std::uint32_t>(digit);
  }
  return code;
}

std::int64_t JsonReader::integer() {
  skip_blanks();
  const std::size_t begin = at_;
  std::int64_t value = 0;
  for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
    const int digit = text_[at_] - '0';
    if (value > (std::numeric_limits<std::int64_t>::max() - digit) / 10) fail("a number beyond 2^63 - 1");
    value = value * 10 + digit;
  }
  if (at_ == begin) fail("expected a number that is not negative");
  if (text_[begin] == '0' && at_ > begin + 1) fail("a number with a leading zero");
  return value;
}

std::string json_quote(std::string_view text) {
  WEFT_REQUIRE(find_invalid(text) == std::string_view::npos, "a name or value is not UTF-8 and cannot be written");
  std::string out = "\"";
  constexpr char kHex[] = "0123456789abcdef";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace weft::checkpoint::internal

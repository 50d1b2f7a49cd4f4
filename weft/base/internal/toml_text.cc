#include "weft/base/internal/toml_text.h"

namespace weft::internal {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Returns the end of the string that begins at `at`, or the end of the text if the string is not
// closed.
std::size_t skip_string(std::string_view toml, std::size_t at) {
  const char quote = toml[at];
  const bool lines = toml.substr(at).starts_with(quote == '"' ? "\"\"\"" : "'''");
  for (at += lines ? 3 : 1; at < toml.size(); ++at) {
    if (toml[at] == '\\' && quote == '"') {
      ++at;
    } else if (toml[at] == quote && !lines) {
      return at + 1;
    } else if (toml[at] == quote && toml.substr(at).starts_with(quote == '"' ? "\"\"\"" : "'''")) {
      std::size_t end = at + 3;
      // Up to two quotes may stand before the three that close.
      while (end < toml.size() && end < at + 5 && toml[end] == quote) ++end;
      return end;
    } else if (toml[at] == '\n' && !lines) {
      return toml.size();  // a mistake, at which the parser stops
    }
  }
  return toml.size();
}

// Returns where the first character outside of strings and comments is for which `wanted` is true.
template <class Wanted>
std::optional<std::size_t> find_plain(std::string_view toml, Wanted wanted) {
  for (std::size_t at = toml.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
       at < toml.size();) {
    const char c = toml[at];
    if (wanted(c)) return at;
    if (c == '#') {
      at = toml.find('\n', at);
    } else if (c == '"' || c == '\'') {
      at = skip_string(toml, at);
    } else {
      ++at;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::size_t> find_unquoted(std::string_view toml) {
  return find_plain(toml, [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
}

std::optional<std::size_t> find_long_key(std::string_view toml, std::size_t most) {
  std::size_t parts = 1;
  return find_plain(toml, [&](char c) {
    constexpr std::string_view kBetween = "=,\n[]{}";
    if (kBetween.find(c) != std::string_view::npos) parts = 1;
    return c == '.' && ++parts > most;
  });
}

}  // namespace weft::internal

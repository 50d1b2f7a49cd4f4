#define PCRE2_CODE_UNIT_WIDTH 8
#include "weft/data/text/internal/regex.h"

#include <pcre2.h>

#include "weft/base/error.h"
#include "weft/data/text/internal/characters.h"

namespace weft::data::text::internal {
namespace {

constexpr std::size_t kMaxPattern = 4096;
constexpr std::uint32_t kMaxSteps = 10'000'000;
constexpr std::uint32_t kMaxHeapKib = 16 * 1024;

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw Error(Errc::kBadConfig, where + ": the regular expression " + what);
}

std::string message_of(int code) {
  unsigned char text[256];
  ::pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

[[noreturn]] void refuse_other(const std::string& where, std::string_view what) {
  refuse(where, "has " + std::string(what) + ", which libraries read differently");
}

// A group's begin "(?…": flags other than i differ, and "(?i)" within a pattern begins a group of
// its own in Oniguruma alone.
void check_group(std::string_view pattern, std::size_t at, const std::string& where) {
  if (!pattern.substr(at).starts_with("(?")) return;
  const std::size_t end =
      pattern.find_first_not_of("-abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", at + 2);
  const std::string_view flags = pattern.substr(at + 2, end - at - 2);
  if (flags.empty()) return;
  const bool is_group = end < pattern.size() && pattern[end] == ':';
  if (flags.find_first_not_of("-i") != std::string_view::npos || (!is_group && at > 0))
    refuse_other(where, pattern.substr(at, end - at + 1));
}

// A repetition "{m,n}": one without m is none in PCRE2, and a + behind it makes it possessive there
// alone.
void check_repetition(std::string_view pattern, std::size_t at, const std::string& where) {
  std::size_t end = at + 1;
  while (end < pattern.size() && (is_digit(pattern[end]) || pattern[end] == ',')) ++end;
  if (end == at + 1 || end >= pattern.size() || pattern[end] != '}') return;
  const bool is_possessive = end + 1 < pattern.size() && pattern[end + 1] == '+';
  if (pattern[at + 1] == ',' || is_possessive)
    refuse_other(where, pattern.substr(at, end - at + 1 + (is_possessive ? 1 : 0)));
}

// Translates a pattern of Oniguruma to PCRE2. Refuses syntax that the two libraries interpret
// differently. Oniguruma as Hugging Face's tokenizers use it has Ruby's syntax.
std::string translate(std::string_view pattern, const std::string& where) {
  std::string out;
  bool in_class = false;
  for (std::size_t at = 0; at < pattern.size(); ++at) {
    const char c = pattern[at];
    const char next = at + 1 < pattern.size() ? pattern[at + 1] : '\0';
    if (c == '\\') {
      if (std::string_view("wWbBXRKGZhHvNCQE").find(next) != std::string_view::npos && next != '\0')
        refuse_other(where, pattern.substr(at, 2));
      out += next == 's'   ? "\\p{White_Space}"
             : next == 'S' ? "\\P{White_Space}"
                           : std::string{c, next};
      ++at;
      continue;
    }
    if (in_class && ((c == '[' && next != ':') || (c == '&' && next == '&')))
      refuse(where, "has a class within a class");
    if (!in_class) {
      if (c == '(' && next == '*') refuse(where, "has (*, which only PCRE2 knows");
      if (c == '^' || c == '$') refuse_other(where, pattern.substr(at, 1));
      if (c == '(') check_group(pattern, at, where);
      if (c == '{') check_repetition(pattern, at, where);
    }
    if (c == '[' && !in_class) in_class = true;
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  std::string where;
  ~Code() { ::pcre2_code_free(code); }
};

Regex::Regex(std::string_view pattern, const std::string& where) {
  if (pattern.size() > kMaxPattern)
    refuse(where, "is longer than " + std::to_string(kMaxPattern) + " bytes");
  if (pattern.find('\0') != std::string_view::npos) refuse(where, "has a zero in it");
  const std::string translated = translate(pattern, where);
  int error = 0;
  std::size_t offset = 0;
  auto code = std::make_shared<Code>();
  code->where = where;
  code->code =
      ::pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C,
                      &error, &offset, nullptr);
  if (code->code == nullptr)
    refuse(where, shown(pattern) + " cannot be used: " + message_of(error));
  // This may fail, for example without permission for executable pages. Matching is then slower.
  ::pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);
  code_ = std::move(code);
}

struct Regex::Matcher::State {
  std::shared_ptr<const Code> code;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;

  ~State() {
    ::pcre2_match_data_free(data);
    ::pcre2_match_context_free(context);
    ::pcre2_jit_stack_free(stack);
  }
};

Regex::Matcher::Matcher(const Regex& regex) : state_(std::make_shared<State>()) {
  state_->code = regex.code_;
  state_->data = ::pcre2_match_data_create(1, nullptr);
  state_->context = ::pcre2_match_context_create(nullptr);
  state_->stack = ::pcre2_jit_stack_create(32 * 1024, 1024 * 1024, nullptr);
  if (state_->data == nullptr || state_->context == nullptr || state_->stack == nullptr)
    throw std::bad_alloc();
  ::pcre2_set_match_limit(state_->context, kMaxSteps);
  ::pcre2_set_heap_limit(state_->context, kMaxHeapKib);
  ::pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
}

std::optional<std::pair<std::size_t, std::size_t>> Regex::Matcher::next(std::string_view text,
                                                                        std::size_t from) {
  const int found = ::pcre2_match(state_->code->code, reinterpret_cast<PCRE2_SPTR>(text.data()),
                                  text.size(), from, 0, state_->data, state_->context);
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0)
    refuse(state_->code->where,
           "fails on a text of " + std::to_string(text.size()) + " bytes: " + message_of(found));
  const std::size_t* const ends = ::pcre2_get_ovector_pointer(state_->data);
  // With \K and lookbehind, the end can be before the beginning.
  return std::pair{ends[0], std::max(ends[0], ends[1])};
}

}  // namespace weft::data::text::internal

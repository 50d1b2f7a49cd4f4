#include "weft/linear/data/internal/libsvm_parser.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/linear/data/text_file.h"

namespace weft::linear::internal {
namespace {

constexpr std::ptrdiff_t kMaxWord = 512;
constexpr std::uint64_t kBlock = 64;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool ends_word(char c) { return is_blank(c) || c == '\n' || c == '#'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

LibsvmParser::LibsvmParser(std::string name, const LibsvmOptions& options, LineShare share,
                           SparseRows& rows)
    : name_(std::move(name)), options_(options), share_(std::move(share)), rows_(rows) {
  ended_ = share_.end == 0;
  skip_ = share_.rank != 0;
}

std::uint64_t LibsvmParser::position(const char* at) const {
  return piece_ + static_cast<std::uint64_t>(at - begin_);
}

void LibsvmParser::fail(const std::string& reason) const {
  const std::uint64_t before = share_.lines_before ? share_.lines_before() : 0;
  throw Error(Errc::kCorrupt, name_ + ":" + std::to_string(before + line_ + 1) + ":" +
                                  std::to_string(word_start_ - line_start_ + 1) + ": " + reason);
}

bool LibsvmParser::feed(std::string_view piece) {
  begin_ = piece.data();
  const char *at = begin_, *const end = begin_ + piece.size();
  while (at != end && !ended_) at = skip_ ? skip_line(at, end) : parse_words(at, end);
  piece_ += piece.size();
  return !ended_;
}

void LibsvmParser::finish() {
  if (ended_) return;
  if (!carry_.empty()) take(std::exchange(carry_, {}));
  if (has_label_) end_line(piece_);
  ended_ = true;
}

const char* LibsvmParser::skip_line(const char* at, const char* end) {
  const void* const found = std::memchr(at, '\n', static_cast<std::size_t>(end - at));
  if (found == nullptr) return end;
  const char* const newline = static_cast<const char*>(found);
  end_line(position(newline));
  return newline + 1;
}

// Parses up to the end of the line or of the piece. Returns the place behind.
const char* LibsvmParser::parse_words(const char* at, const char* end) {
  while (at != end) {
    if (carry_.empty()) {
      if (has_label_) at = parse_entries(at, end);
      if (is_blank(*at)) {
        at = std::find_if_not(at, end, is_blank);
        continue;
      }
      if (*at == '\n') {
        end_line(position(at));
        return at + 1;
      }
      if (*at == '#') {
        skip_ = true;
        return at + 1;
      }
      word_start_ = position(at);
    }
    const char* const stop = std::find_if(at, end, ends_word);
    if (stop == end || !carry_.empty()) carry_over({at, stop});
    if (stop == end) return end;
    take(carry_.empty() ? std::string_view(at, stop) : std::string_view(carry_));
    carry_.clear();
    at = stop;
  }
  return at;
}

// Parses entries while they are in the usual form and lie well within the piece. Leaves any other
// word to take(), which also finds the reason of an error.
const char* LibsvmParser::parse_entries(const char* at, const char* end) {
  constexpr std::ptrdiff_t kMaxDigits = 10;
  while (end - at > 2 * kMaxWord) {
    const char* const word = at + (*at == ' ' ? 1 : 0);
    const char* digit = word;
    std::uint64_t index = 0;
    while (is_digit(*digit) && digit - word < kMaxDigits)
      index = index * 10 + static_cast<std::uint64_t>(*digit++ - '0');
    if (digit == word || *digit != ':') return at;
    double value = 0;
    const auto [stop, error] = std::from_chars(digit + 1, digit + kMaxWord, value);
    if (error != std::errc() || !std::isfinite(value) || !ends_word(*stop)) return at;
    word_start_ = position(word);
    add(index, value);
    at = stop;
  }
  return at;
}

// Keeps the begin of a word that the piece cuts.
void LibsvmParser::carry_over(std::string_view part) {
  carry_.append(part.substr(0, kMaxWord + 1));
  if (carry_.size() > kMaxWord) take(carry_);
}

void LibsvmParser::take(std::string_view word) {
  if (word.size() > kMaxWord)
    fail("a word of more than " + std::to_string(kMaxWord) + " bytes: " + shown(word));
  if (has_label_)
    take_entry(word);
  else
    take_label(word);
}

void LibsvmParser::take_label(std::string_view word) {
  const auto label = parse_number(word);
  if (!label) {
    const bool several = word.find(',') != std::string_view::npos;
    fail("label " + shown(word) + " is not a finite number" +
         (several ? "; rows with several labels are not supported" : ""));
  }
  label_ = *label;
  has_label_ = true;
}

void LibsvmParser::take_entry(std::string_view word) {
  const auto colon = word.find(':');
  if (colon == std::string_view::npos) fail("expected index:value, got " + shown(word));
  const std::string_view left = word.substr(0, colon), right = word.substr(colon + 1);
  if (left == "qid") fail("qid: is not supported: it marks data for ranking");
  const bool negative = left.starts_with('-');
  const std::string_view digits = left.substr(negative ? 1 : 0);
  if (digits.empty() || !std::all_of(digits.begin(), digits.end(), is_digit))
    fail("index " + shown(left) + " is not a whole number");
  if (negative) fail("index " + std::string(left.substr(0, 20)) + " is negative");
  std::uint64_t index = 0;
  const auto error = std::from_chars(digits.data(), digits.data() + digits.size(), index).ec;
  if (error != std::errc()) index = ~std::uint64_t{0};
  const auto value = parse_number(right);
  if (!value) fail("value " + shown(right) + " is not a finite number");
  add(index, *value);
}

void LibsvmParser::add(std::uint64_t index, double value) {
  if (index == 0 && !options_.zero_based)
    fail("index 0: indices count from 1; if this file counts from 0, use zero_based");
  if (index > options_.max_index) {
    fail("index " +
         (index == ~std::uint64_t{0} ? "with more than 19 digits" : std::to_string(index)) +
         " is above the limit of " + std::to_string(options_.max_index) + " (max_index)");
  }
  if (index + 1 == last_) fail("index " + std::to_string(index) + " is twice in this row");
  if (index < last_) {
    fail("index " + std::to_string(index) + " follows index " + std::to_string(last_ - 1) +
         "; indices must ascend");
  }
  const auto stored = static_cast<float>(value);
  if (!std::isfinite(stored)) fail("value " + json_number(value) + " does not fit into float32");
  last_ = index + 1;
  if (stored == 0) return;
  constexpr std::size_t kSometimes = 1 << 16;
  if (rows_.entries.size() % kSometimes == 0) check_memory();
  const std::uint64_t column = index - (options_.zero_based ? 0 : 1);
  rows_.entries.push_back({static_cast<std::uint32_t>(column), stored});
}

void LibsvmParser::end_line(std::uint64_t at) {
  if (has_label_) {
    if (options_.bias >= 0)
      rows_.entries.push_back({kBiasColumn, static_cast<float>(options_.bias)});
    rows_.end_row(label_);
    constexpr std::size_t kSometimes = 1 << 12;
    if (rows_.size() % kSometimes == 0) check_memory();
  }
  has_label_ = false;
  last_ = 0;
  ++line_;
  line_start_ = at + 1;
  ended_ = line_start_ >= share_.end;
  skip_ = line_ / kBlock % share_.world != share_.rank;
}

void LibsvmParser::check_memory() const {
  if (options_.max_bytes == 0 || rows_.bytes() <= options_.max_bytes) return;
  throw Error(Errc::kUnavailable,
              name_ + ": the rows up to line " + std::to_string(line_ + 1) + " need " +
                  format_bytes(rows_.bytes()) + " of memory, and the limit is " +
                  format_bytes(options_.max_bytes) + "; use more hosts, or raise the limit");
}

}  // namespace weft::linear::internal

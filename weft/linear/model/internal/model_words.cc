#include "weft/linear/model/internal/model_words.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <system_error>

#include "weft/base/error.h"

namespace weft::linear::internal {
namespace {

constexpr std::size_t kMaxWord = 512;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

}  // namespace

void ModelWords::fail(const std::string& reason) const {
  throw Error(Errc::kCorrupt, path_ + ":" + std::to_string(line_) + ": " + reason);
}

void ModelWords::fail(const std::string& what, const std::string& word) const {
  fail("unknown " + what + " " + shown(word) + "; this is no model file of LIBLINEAR");
}

// Moves to the next word. Returns false at the end.
bool ModelWords::skip_blanks() {
  for (;;) {
    if (piece_.empty()) piece_ = file_.next();
    if (piece_.empty()) return false;
    if (!is_blank(piece_.front())) return true;
    if (piece_.front() == '\n') ++line_;
    piece_.remove_prefix(1);
  }
}

bool ModelWords::at_end() { return !skip_blanks(); }

std::string ModelWords::text() {
  word_.clear();
  if (!skip_blanks()) fail("the file ends early; this is no model file of LIBLINEAR");
  while (!piece_.empty() && !is_blank(piece_.front())) {
    const auto end = std::find_if(piece_.begin(), piece_.end(), is_blank);
    const auto size = static_cast<std::size_t>(end - piece_.begin());
    word_.append(piece_.substr(0, std::min(size, kMaxWord + 1)));
    if (word_.size() > kMaxWord)
      fail("a word of more than " + std::to_string(kMaxWord) + " bytes: " + shown(word_));
    piece_.remove_prefix(size);
    if (piece_.empty()) piece_ = file_.next();
  }
  return word_;
}

double ModelWords::number() {
  text();
  const auto value = parse_number(word_);
  if (!value) fail(shown(word_) + " is not a finite number");
  return *value;
}

std::uint64_t ModelWords::whole(std::uint64_t most) {
  text();
  std::uint64_t value = 0;
  const char* const end = word_.data() + word_.size();
  const auto [stop, error] = std::from_chars(word_.data(), end, value);
  if (error != std::errc() || stop != end || value > most)
    fail(shown(word_) + " is not a whole number of at most " + std::to_string(most));
  return value;
}

int ModelWords::integer() {
  text();
  int value = 0;
  const char* const end = word_.data() + word_.size();
  const auto [stop, error] = std::from_chars(word_.data(), end, value);
  if (error != std::errc() || stop != end) fail("label " + shown(word_) + " is not a whole number");
  return value;
}

}  // namespace weft::linear::internal

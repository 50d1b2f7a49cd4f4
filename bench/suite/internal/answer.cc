#include "bench/suite/internal/answer.h"

#include <cctype>
#include <cstdlib>

#include "weft/base/error.h"
#include "weft/base/log.h"

namespace weft::cli::bench_internal {
namespace {

constexpr int kMaxDepth = 8;

class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}

  Message read() {
    object("", 0);
    if (peek() != '\0') fail();
    return std::move(message_);
  }

 private:
  [[noreturn]] void fail() const {
    throw Error(Errc::kCorrupt, "not an answer, at column " + std::to_string(at_ + 1) + ": " + text_.substr(0, 200));
  }
  char peek() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!take(wanted)) fail();
  }
  // Escapes of letters (\n, \uXXXX) only ever stand in messages for people: they become blanks.
  std::string string() {
    expect('"');
    std::string value;
    for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] != '\\') {
        value += text_[at_];
      } else if (++at_ < text_.size()) {
        value += std::isalpha(static_cast<unsigned char>(text_[at_])) ? ' ' : text_[at_];
      }
    }
    expect('"');
    return value;
  }
  void object(const std::string& prefix, int depth) {
    expect('{');
    if (take('}')) return;
    do {
      const std::string key = string();
      expect(':');
      value(prefix.empty() ? key : prefix + "." + key, depth + 1);
    } while (take(','));
    expect('}');
  }
  void array(const std::string& key, int depth) {
    expect('[');
    if (take(']')) return;
    do value(key, depth + 1);
    while (take(','));
    expect(']');
  }
  void value(const std::string& key, int depth) {
    if (depth > kMaxDepth) fail();
    const char next = peek();
    if (next == '{') return object(key, depth);
    if (next == '[') return array(key, depth);
    if (next == '"') {
      message_.texts[key] = string();
    } else if (std::isalpha(static_cast<unsigned char>(next))) {
      const std::string word = this->word();
      if (word == "true" || word == "false") message_.texts[key] = word;
    } else {
      char* end = nullptr;
      const double number = std::strtod(text_.c_str() + at_, &end);
      if (end == text_.c_str() + at_) fail();
      at_ = static_cast<std::size_t>(end - text_.c_str());
      message_.numbers[key].push_back(number);
    }
  }
  std::string word() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && std::isalpha(static_cast<unsigned char>(text_[at_]))) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  const std::string& text_;
  std::size_t at_ = 0;
  Message message_;
};

}  // namespace

double Message::number(const std::string& key, double missing) const {
  const auto found = numbers.find(key);
  return found == numbers.end() || found->second.empty() ? missing : found->second.front();
}

std::string Message::text(const std::string& key) const {
  const auto found = texts.find(key);
  return found == texts.end() ? "" : found->second;
}

Message parse_message(const std::string& line) { return Reader(line).read(); }

std::string json_array(const std::vector<double>& values) {
  std::string text = "[";
  for (const double value : values) text += (text.size() == 1 ? "" : ",") + json_number(value);
  return text + "]";
}

}  // namespace weft::cli::bench_internal

// The part of JSON that a safetensors header uses, read strictly: objects, arrays, strings and unsigned integers, one after the other, with
// no tree and no recursion, so that no input can make it deep or large.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weft::checkpoint::internal {

// Reads from a text that outlives it. Whatever is not what was asked for throws Error(kCorrupt) with the file's name and the offset.
class JsonReader {
 public:
  // offset: where the text starts in the file, for messages. Refuses text that is not UTF-8.
  JsonReader(std::string_view text, std::string file, std::size_t offset);

  void expect(char punctuation);
  // Takes the character, if it is next.
  bool take(char punctuation);
  // With the escapes resolved (UTF-8).
  std::string string();
  // At most 2^63 - 1; no sign, fraction, exponent or leading zero.
  std::int64_t integer();
  // Only blanks are left.
  void expect_end();

  [[noreturn]] void fail(const std::string& what) const;

 private:
  void skip_blanks();
  void escape(std::string& out);
  std::uint32_t hex4();

  std::string_view text_;
  std::string file_;
  std::size_t offset_;
  std::size_t at_ = 0;
};

// The text as a JSON string, quotes included. Throws Error(kInvalidArgument) if it is not UTF-8.
std::string json_quote(std::string_view text);

}  // namespace weft::checkpoint::internal

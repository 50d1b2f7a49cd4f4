// The words of a LIBLINEAR model file, one after the other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "weft/linear/data/text_file.h"

namespace weft::linear::internal {

class ModelWords {
 public:
  // Throws as TextFile.
  explicit ModelWords(const std::string& path) : path_(path), file_(path) {}

  // True if no word is left.
  bool at_end();
  // The next word, as it is, as a finite number, as a whole number of at most `most`, and as an
  // int. Each throws Error(kCorrupt) with file and line if there is no such word.
  std::string text();
  double number();
  std::uint64_t whole(std::uint64_t most);
  int integer();

  // Throws Error(kCorrupt) with file and line: the reason, or that the word is not a known `what`.
  [[noreturn]] void fail(const std::string& reason) const;
  [[noreturn]] void fail(const std::string& what, const std::string& word) const;

 private:
  bool skip_blanks();

  std::string path_;
  TextFile file_;
  std::string_view piece_;
  std::string word_;
  std::uint64_t line_ = 1;
};

}  // namespace weft::linear::internal

// Parses LIBSVM text that arrives in pieces of any size.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>

#include "weft/linear/data/libsvm.h"

namespace weft::linear::internal {

// Which lines a parser keeps. The others are skipped without being parsed.
struct LineShare {
  // Lines that begin at this byte or later, counted from the first byte fed, belong to others.
  std::uint64_t end = std::numeric_limits<std::uint64_t>::max();
  // Blocks of 64 lines in turn: rank r of w keeps blocks r, r + w, …
  std::uint64_t rank = 0, world = 1;
  // Lines of the file before the first byte fed. Called only for an error's message. Empty: 0.
  std::function<std::uint64_t()> lines_before;
};

class LibsvmParser {
 public:
  // Appends to `rows`, which must outlive this. After an error, the last row is incomplete.
  LibsvmParser(std::string name, const LibsvmOptions& options, LineShare share, SparseRows& rows);

  // Parses the next bytes. Returns false if all lines of the share have been parsed.
  bool feed(std::string_view piece);
  // Ends the text: its last line may lack a newline.
  void finish();

 private:
  const char* skip_line(const char* at, const char* end);
  const char* parse_words(const char* at, const char* end);
  const char* parse_entries(const char* at, const char* end);
  void carry_over(std::string_view part);
  void take(std::string_view word);
  void take_label(std::string_view word);
  void take_entry(std::string_view word);
  void add(std::uint64_t index, double value);
  void end_line(std::uint64_t at);
  void check_memory() const;
  // Position of a place in the piece, counted from the first byte fed.
  std::uint64_t position(const char* at) const;
  // Throws for the word at word_start_.
  [[noreturn]] void fail(const std::string& reason) const;

  std::string name_;
  LibsvmOptions options_;
  LineShare share_;
  SparseRows& rows_;

  bool has_label_ = false;  // The line's label has been parsed.
  bool skip_ = false;       // The rest of the line is a comment, or the line belongs to others.
  bool ended_ = false;
  double label_ = 0;
  std::uint64_t last_ = 0;  // Index of the row's last entry plus 1; 0: none yet.
  std::string carry_;       // Begin of a word that the last piece cut.
  // Positions from the first byte fed: of the piece, the line, and the word.
  std::uint64_t piece_ = 0, line_start_ = 0, word_start_ = 0;
  std::uint64_t line_ = 0;
  const char* begin_ = nullptr;  // The piece.
};

}  // namespace weft::linear::internal

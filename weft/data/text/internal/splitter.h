// Splitter: the pre-tokenizer. It splits text into words; merges happen only within a word. Each
// stage splits the pieces of the stage before it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/data/text/internal/regex.h"

namespace weft::data::text::internal {

struct SplitStage {
  enum class Kind {
    kRegex,    // Every match of `regex` is a piece, and so is the text between matches.
    kLiteral,  // The same with matches of the string `text`.
    kPrefix,   // Prepends `text` to a piece that does not begin with it.
    // Replaces spaces by `text`. Prepends `text` to a piece that does not begin with it, if
    // `always`, or if `first` and the piece begins the user's text. If `cut`, a piece begins at
    // each `text`.
    kMetaspace,
  };
  Kind kind = Kind::kRegex;
  std::optional<Regex> regex;
  std::string text;
  bool first = false;
  bool always = false;
  bool cut = false;
};

// Not thread-safe. Other threads can use a clone().
class Splitter {
 public:
  using Sink = std::function<void(std::string_view)>;

  explicit Splitter(std::vector<SplitStage> stages);

  // Calls the sink with each piece. A piece is not empty and is valid during the call. at_start:
  // `text` is the beginning of the user's text. Throws as Regex::Matcher::next().
  void split(std::string_view text, bool at_start, const Sink& sink);
  // Returns a splitter with the same stages for another thread.
  Splitter clone() const { return Splitter(stages_); }

 private:
  void run(std::size_t stage, std::string_view piece, bool at_start, const Sink& sink);
  void run_matches(std::size_t stage, std::string_view piece, bool at_start, const Sink& sink);
  void run_metaspace(std::size_t stage, std::string_view piece, bool at_start, const Sink& sink);
  std::optional<std::pair<std::size_t, std::size_t>> match(std::size_t stage,
                                                           std::string_view piece,
                                                           std::size_t from);

  std::vector<SplitStage> stages_;
  std::vector<std::optional<Regex::Matcher>> matchers_;
  std::vector<std::string> scratch_;  // One per stage.
};

// Returns `text` with each `old` replaced by `by`.
std::string replaced(std::string_view text, std::string_view old, std::string_view by);

}  // namespace weft::data::text::internal

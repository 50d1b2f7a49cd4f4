// The pre-tokenizer: cuts text into the words within which merges happen, as a list of stages that
// each cut the pieces of the one before.
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
    kRegex,    // every match, and what lies between matches, is a piece
    kLiteral,  // the same with a string
    kPrefix,   // puts `text` in front of a piece that does not begin with it
    // spaces become `text`, which is also put in front (as `first` and `always` say); then, if
    // `cut`, a piece begins at each
    kMetaspace,
  };
  Kind kind = Kind::kRegex;
  std::optional<Regex> regex;
  std::string text;
  bool first = false;
  bool always = false;
  bool cut = false;
};

// One thread at a time; copies may be used by others.
class Splitter {
 public:
  using Sink = std::function<void(std::string_view)>;

  explicit Splitter(std::vector<SplitStage> stages);

  // Calls the sink with each piece, none of them empty; a piece is valid during the call. at_start:
  // the text begins the user's text. Throws as Regex::Matcher::next().
  void split(std::string_view text, bool at_start, const Sink& sink);
  // A splitter of the same stages for another thread.
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
  std::vector<std::string> scratch_;  // one a stage
};

// What `from` becomes with each `old` in it replaced.
std::string replaced(std::string_view text, std::string_view old, std::string_view by);

}  // namespace weft::data::text::internal

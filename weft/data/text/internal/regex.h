// A regular expression of a tokenizer over UTF-8, by PCRE2. It comes from a file that nobody
// vouches for: its length, and the steps of a match, are bounded.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace weft::data::text::internal {

// Immutable; copies share. Classes are Unicode's, \s is White_Space, as in Oniguruma, which Hugging
// Face's tokenizers use.
class Regex {
 public:
  // Throws Error(kBadConfig), whose message begins with `where`, for an expression that PCRE2 does
  // not take or that means something else to Oniguruma (\w, \b, nested classes, &&), or of more
  // than 4096 bytes.
  Regex(std::string_view pattern, const std::string& where);

  // What one thread needs to match.
  class Matcher {
   public:
    explicit Matcher(const Regex& regex);
    // The first match at or after `from`, as [begin, end). A byte that is not UTF-8 is in no match.
    // Throws Error(kBadConfig) when a match takes more than ten million steps.
    std::optional<std::pair<std::size_t, std::size_t>> next(std::string_view text,
                                                            std::size_t from);

   private:
    struct State;
    std::shared_ptr<State> state_;
  };

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace weft::data::text::internal

// Regex: a regular expression of a tokenizer on UTF-8, by PCRE2. It may come from an untrusted
// file, so its length and the steps of a match are limited.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace weft::data::text::internal {

// Immutable. Copies share the compiled expression. Classes are those of Unicode and \s is
// White_Space, as in Oniguruma, which Hugging Face's tokenizers use.
class Regex {
 public:
  // Throws Error(kBadConfig), whose message begins with `where`, for an expression that PCRE2
  // rejects, that Oniguruma interprets differently (\w, \b, ^, $, flags but i, {2}+, nested
  // classes, &&), or that has more than 4096 bytes.
  Regex(std::string_view pattern, const std::string& where);

  // The memory that one thread needs for matching.
  class Matcher {
   public:
    explicit Matcher(const Regex& regex);
    // Returns the first match at or after `from`, as [begin, end). Bytes that are not UTF-8 are in
    // no match. Throws Error(kBadConfig) if a match takes more than ten million steps.
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

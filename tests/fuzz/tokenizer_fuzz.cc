// tokenizer.json, and what a tokenizer that was accepted then does with text.
#include "weft/data/text/tokenizer.h"

#include "tests/fuzz/fuzz.h"

using weft::Errc;
using weft::fuzz::accepts;
using weft::fuzz::check;

namespace {

constexpr std::string_view kTexts[] = {"", "a ab abc  don't 42\n\n",
                                       "caf\xc3\xa9 e\xcc\x81 \xe7\xbb\x87",
                                       "\xff\xe7\xbb<s>\xf0\x9f\xa7\xb5<|endoftext|> \xe2\x96\x81"};

}  // namespace

void weft::fuzz::one_input(const std::uint8_t* data, std::size_t size) {
  using namespace weft::data::text;
  std::unique_ptr<Tokenizer> tokenizer;
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  if (!accepts({Errc::kCorrupt, Errc::kBadConfig},
               [&] { tokenizer = parse_tokenizer(json, "fuzz"); }))
    return;
  for (const std::string_view text : kTexts) {
    for (const Specials specials : {Specials::kRecognize, Specials::kAsText}) {
      accepts({Errc::kInvalidArgument, Errc::kBadConfig}, [&] {
        const auto ids = tokenizer->encode(text, specials);
        for (const TokenId id : ids)
          check(id >= 0 && id < tokenizer->vocab_size(),
                "ids are below the size of the vocabulary");
        check(ids == tokenizer->encode(text, specials), "known words have the same ids");
        const std::string back = tokenizer->decode(ids);
        check(!tokenizer->round_trips() || back == text, "what round-trips comes back");
      });
    }
  }
}

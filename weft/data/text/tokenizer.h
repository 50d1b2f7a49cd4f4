// Text as token ids and back: bytes as they are, or byte-pair encoding (Sennrich et al. 2016) as
// read from Hugging Face's tokenizer.json. The components of that file run in this order:
//
//   text ─ added tokens ─ normalizer ─ pre-tokenizer ─ merges ─> ids
//   ids ─ bytes of each ─ decoder ─> text
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::data::text {

using TokenId = std::int32_t;

// What "<|endoftext|>" in a text means: the token of that name, or these 13 characters. Text from
// outside should not be able to end a document, so that training data is read as kAsText.
enum class Specials { kRecognize, kAsText };

// encode() of one object is for one thread at a time (it keeps words that it has seen); everything
// else is const and for any.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of the text. Any bytes can be encoded: where they are not UTF-8, they match no
  // character class and are a word of their own. What post_processor would add (a begin or end
  // token) is not added.
  // Throws Error(kInvalidArgument) where the vocabulary has no token for a byte or character and no
  // unk_token; `ids` then has a part.
  virtual void encode(std::string_view text, std::vector<TokenId>& ids,
                      Specials specials = Specials::kAsText) = 0;

  // The text of the ids: byte for byte what was encoded, if the tokenizer is byte-level and adds no
  // space (round_trips()). Bytes that a byte fallback has taken apart come back as they were, valid
  // or not.
  // Throws Error(kInvalidArgument) naming the position of an id that there is none of.
  virtual std::string decode(const std::vector<TokenId>& ids) const = 0;

  // Ids are below this. Not each of them need have a token.
  virtual std::int64_t vocab_size() const = 0;
  // The id of an added token by its text ("</s>"), else of a token of the vocabulary as
  // tokenizer.json writes it.
  virtual std::optional<TokenId> id_of(std::string_view token) const = 0;
  // decode(encode(x)) is x for all bytes. Not so where a space is put in front of the text, spaces
  // become U+2581, text is normalized, or what the vocabulary lacks becomes unk_token.
  virtual bool round_trips() const = 0;
  // Tells tokenizers apart: the CRC32C of tokenizer.json. Token files keep it.
  virtual std::uint32_t fingerprint() const = 0;
  // The same tokenizer for another thread; the tables are shared.
  virtual std::unique_ptr<Tokenizer> clone() const = 0;

  std::vector<TokenId> encode(std::string_view text, Specials specials = Specials::kAsText) {
    std::vector<TokenId> ids;
    encode(text, ids, specials);
    return ids;
  }
};

// Ids 0 to 255 are the bytes; specials[i] is 256 + i. Throws Error(kInvalidArgument) for a special
// token that is empty or occurs twice.
std::unique_ptr<Tokenizer> byte_tokenizer(std::vector<std::string> specials = {"<|endoftext|>"});

// A tokenizer.json of the same ids, for who knows no other tokenizers; it too can encode any bytes.
std::string byte_tokenizer_json(const std::vector<std::string>& specials = {"<|endoftext|>"});

struct TokenizerLimits {
  std::size_t max_bytes = std::size_t{128} << 20;  // of the file
  std::int64_t max_id = (std::int64_t{1} << 21) - 1;
};

// Reads tokenizer.json. Understood are
//   model           BPE with merges as "a b" or ["a", "b"], unk_token, fuse_unk, byte_fallback,
//                   ignore_merges
//   normalizer      none, NFC, Prepend, Replace of a string, Sequence of these
//   pre_tokenizer   none, ByteLevel, Split (Isolated, by a string or regular expression), Digits,
//                   Metaspace, Sequence of these
//   decoder         ByteLevel, Metaspace, and Sequence of Replace, ByteFallback, Fuse, Strip as
//                   Llama 2 has it
//   added_tokens    longest first, without lstrip, rstrip, single_word
// that is GPT-2, Llama 2 and 3, Mistral, Qwen, GPT-NeoX and their kin. post_processor, truncation
// and padding are not looked at. Throws Error(kInvalidArgument) if the file can't be opened,
// Error(kBadConfig) naming the component that is not understood, and Error(kCorrupt) for what is
// not JSON or contradicts itself; each names the file.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path, TokenizerLimits limits = {});
// The same from a string; `name` is for messages.
std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view json, const std::string& name,
                                           TokenizerLimits limits = {});

}  // namespace weft::data::text

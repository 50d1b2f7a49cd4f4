// Tokenizer: converts text to token ids and back. A token is a byte, or comes from byte-pair
// encoding (Sennrich et al. 2016) by Hugging Face's tokenizer.json. The components of that file run
// in this order:
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

// Meaning of "<|endoftext|>" in a text: the special token of that name, or these 13 characters.
// Untrusted text must not be able to end a document, so training data is read with kAsText.
enum class Specials { kRecognize, kAsText };

// encode() caches words, so only one thread at a time may call it on an object. All other functions
// are const and thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of the text. Any bytes can be encoded: bytes that are not UTF-8 match no
  // character class and form a word of their own. Tokens that post_processor would add (a begin or
  // end token) are not added.
  // Throws Error(kInvalidArgument) if the vocabulary has neither a token for a byte or character
  // nor an unk_token, or if the text is 2 GiB or more, also once it is normalized; `ids` then has
  // the ids of a part of the text.
  virtual void encode(std::string_view text, std::vector<TokenId>& ids,
                      Specials specials = Specials::kAsText) = 0;

  // Returns the text of the ids. If round_trips(), it equals the encoded text byte for byte. Byte
  // fallback also restores the original bytes, valid UTF-8 or not.
  // Throws Error(kInvalidArgument), naming the position, for an id without a token.
  virtual std::string decode(const std::vector<TokenId>& ids) const = 0;

  // Returns the text that `ids` add to the text of `before`. A decoder that removes a space at the
  // begin of a text does not do so here. Throws as decode().
  std::string decode_after(const std::vector<TokenId>& before,
                           const std::vector<TokenId>& ids) const;

  // All ids are smaller. Not every id has a token.
  virtual std::int64_t vocab_size() const = 0;
  // True if decode() accepts the id.
  virtual bool has_token(TokenId id) const = 0;
  // Returns the id of an added token by its text ("</s>"), or else of a token of the vocabulary as
  // tokenizer.json writes it.
  virtual std::optional<TokenId> id_of(std::string_view token) const = 0;
  // True if decode(encode(x)) is x for all bytes. False for a tokenizer that prepends a space,
  // replaces spaces by U+2581, normalizes text, or uses unk_token.
  virtual bool round_trips() const = 0;
  // Identifies the tokenizer: the CRC32C of tokenizer.json. Token files contain it.
  virtual std::uint32_t fingerprint() const = 0;
  // Returns the same tokenizer for another thread. The tables are shared.
  virtual std::unique_ptr<Tokenizer> clone() const = 0;

  std::vector<TokenId> encode(std::string_view text, Specials specials = Specials::kAsText) {
    std::vector<TokenId> ids;
    encode(text, ids, specials);
    return ids;
  }
};

// Returns a tokenizer whose ids 0 to 255 are the bytes and whose id 256 + i is specials[i]. Throws
// Error(kInvalidArgument) for a special token that is empty or occurs twice.
std::unique_ptr<Tokenizer> byte_tokenizer(std::vector<std::string> specials = {"<|endoftext|>"});

// Returns a tokenizer.json with the same ids, for programs that need such a file. It can encode any
// bytes.
std::string byte_tokenizer_json(const std::vector<std::string>& specials = {"<|endoftext|>"});

struct TokenizerLimits {
  std::size_t max_bytes = std::size_t{128} << 20;  // Largest size of the file.
  std::int64_t max_id = (std::int64_t{1} << 21) - 1;
};

// Reads tokenizer.json. Supported components:
//   model           BPE with merges as "a b" or ["a", "b"], unk_token, fuse_unk, byte_fallback,
//                   ignore_merges
//   normalizer      none, NFC, Prepend, Replace of a string, Sequence of these
//   pre_tokenizer   none, ByteLevel, Split (Isolated, by a string or regular expression), Digits,
//                   Metaspace, Sequence of these
//   decoder         ByteLevel, Metaspace, and Llama 2's Sequence of Replace, ByteFallback, Fuse,
//                   Strip
//   added_tokens    longest first, without lstrip, rstrip, single_word
// This covers GPT-2, Llama 2 and 3, Mistral, Qwen, GPT-NeoX and similar models. post_processor,
// truncation and padding are ignored. Throws Error(kInvalidArgument) if the file cannot be opened,
// Error(kBadConfig), naming the component, if it is not supported, and Error(kCorrupt) if the file
// is not JSON or contradicts itself. Each message names the file.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path, TokenizerLimits limits = {});
// As load_tokenizer(), from a string. Error messages contain `name` instead of the file.
std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view json, const std::string& name,
                                           TokenizerLimits limits = {});

}  // namespace weft::data::text

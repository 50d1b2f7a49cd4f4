// TokenFile: a file of token ids that is mapped into memory. A text is tokenized once, and then
// every rank reads the file.
//
//   offset 0   "WEFTTOK1"
//          8   version, u32
//          12  bytes per token, u32: 2 or 4
//          16  number of tokens, u64
//          24  vocabulary size, u32
//          28  fingerprint of the tokenizer, u32
//          32  end token, i32; -1: none
//          36  CRC32C of the tokens, u32
//          40  zeros
//          60  CRC32C of bytes 0 to 59, u32
//          64  tokens, u16 or u32
//
// Numbers are little-endian.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "weft/base/file.h"
#include "weft/data/sampler.h"
#include "weft/data/text/tokenizer.h"

namespace weft::data::text {

struct TokenFileInfo {
  std::int64_t vocab_size = 0;       // All ids are smaller.
  std::uint32_t fingerprint = 0;     // Tokenizer::fingerprint(). 0: not known.
  std::optional<TokenId> end_token;  // Token after each document.
};

// Writes a token file, with two bytes per token if the vocabulary allows, otherwise four. It writes
// to a temporary file that finish() renames, so that `path` is never incomplete.
class TokenWriter {
 public:
  // Throws Error(kInvalidArgument) for a vocabulary that is empty or has 2^31 or more ids, and for
  // an end token outside it. All functions throw as base/file.h says if the file cannot be written.
  TokenWriter(std::string path, TokenFileInfo info);
  // Removes the temporary file if finish() was not called.
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  // Throws Error(kInvalidArgument) for an id outside the vocabulary; then none of `ids` is
  // appended.
  void append(std::span<const TokenId> ids);
  // Writes the header, flushes the file, renames it and flushes the folder. Call it once.
  void finish();
  std::int64_t size() const { return count_; }

 private:
  void flush();

  std::string path_, temporary_;
  TokenFileInfo info_;
  UniqueFd file_;
  std::string buffer_;
  std::int64_t count_ = 0;
  std::uint32_t sum_ = 0;
};

// Immutable and thread-safe. Copies share the mapping. If another process truncates a mapped file,
// SIGBUS ends this process: replace token files, do not rewrite them in place.
class TokenFile {
 public:
  // Opens a file of TokenWriter. Throws Error(kInvalidArgument) if it cannot be opened. Throws
  // Error(kCorrupt), naming the file, for another magic or version, for a damaged or invalid
  // header, and for a length that differs from the header's.
  static TokenFile open(const std::string& path);

  std::int64_t size() const { return count_; }
  const TokenFileInfo& info() const { return info_; }
  const std::string& path() const { return path_; }
  // True if both have the same tokens, by their number and checksum, of the same tokenizer.
  bool is_same(const TokenFile& other) const;

  // Copies tokens [begin, begin + out.size()). Throws Error(kInvalidArgument) for a range outside
  // the file, and Error(kCorrupt), naming the position, for a token outside the vocabulary.
  void read(std::int64_t begin, std::span<std::int64_t> out) const;
  // Returns the position of the first end token in [from, end), or `end` if there is none.
  std::int64_t find_end(std::int64_t from, std::int64_t end) const;
  // Reads all tokens. Throws Error(kCorrupt) if a token or the checksum is wrong.
  void verify() const;
  // Throws Error(kBadConfig) unless the file was made by this tokenizer. A file without a
  // fingerprint passes if its vocabulary is not larger than the tokenizer's.
  void expect(const Tokenizer& tokenizer) const;

 private:
  struct Mapping;
  TokenFile(std::string path, std::shared_ptr<const Mapping> mapping)
      : path_(std::move(path)), mapping_(std::move(mapping)) {}
  std::int64_t token(std::int64_t at) const;

  std::string path_;
  std::shared_ptr<const Mapping> mapping_;
  const unsigned char* tokens_ = nullptr;
  std::int64_t count_ = 0;
  std::int64_t width_ = 2;  // Bytes per token.
  std::uint32_t sum_ = 0;
  TokenFileInfo info_;
};

struct TokenSplit {
  Range train;
  Range validation;
};
// Splits off the last fraction `validation` (0 to below 1) of the file. In a file with an end
// token, the cut is moved to the end of a document, so that no document is in both parts. Throws
// Error(kInvalidArgument) for a fraction out of range, and if no tokens are left to train on.
TokenSplit split_tokens(const TokenFile& file, double validation);

}  // namespace weft::data::text

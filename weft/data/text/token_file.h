// Files of token ids, mapped into memory: what a text is tokenized into once and then read by every
// rank.
//
//   bytes 0-7 "WEFTTOK1" | 8 version u32 | 12 bytes a token u32 | 16 count u64 | 24 vocabulary u32
//   | 28 tokenizer's fingerprint u32
//   | 32 end token i32 or -1 | 36 CRC32C of the tokens u32 | 40-59 zero | 60 CRC32C of bytes 0-59
//   u32 | 64 tokens, u16 or u32,
//   little-endian
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
  std::int64_t vocab_size = 0;       // ids are below it
  std::uint32_t fingerprint = 0;     // Tokenizer::fingerprint(); 0: not known
  std::optional<TokenId> end_token;  // follows each document
};

// Two bytes a token if the vocabulary allows, else four. Written aside and renamed by finish(), so
// that the file is complete or absent.
class TokenWriter {
 public:
  // Throws Error(kInvalidArgument) for a vocabulary that is empty or beyond 2^31, an end token
  // outside it, and as base/file.h says.
  TokenWriter(std::string path, TokenFileInfo info);
  // Without finish() nothing is left behind.
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  // Throws Error(kInvalidArgument) for an id outside the vocabulary; nothing of these is written
  // then.
  void append(std::span<const TokenId> ids);
  // Flushes, writes the header, renames, flushes the folder. Once.
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

// Immutable, for any thread; copies share the mapping. A file that another process shortens while
// it is mapped ends this one by SIGBUS: token files are replaced, never rewritten.
class TokenFile {
 public:
  // Opens what TokenWriter wrote. Throws Error(kInvalidArgument) if it can't be opened,
  // Error(kCorrupt) naming the file for another magic or version, a header that is damaged or
  // impossible, or a length that is not what the header says.
  static TokenFile open(const std::string& path);

  std::int64_t size() const { return count_; }
  const TokenFileInfo& info() const { return info_; }
  const std::string& path() const { return path_; }

  // Copies tokens [begin, begin + out.size()). Throws Error(kInvalidArgument) for a range outside
  // the file, Error(kCorrupt) naming the position of a token that is not below the vocabulary.
  void read(std::int64_t begin, std::span<std::int64_t> out) const;
  // The first end token at or after `from` and before `end`; `end` if there is none.
  std::int64_t find_end(std::int64_t from, std::int64_t end) const;
  // Reads all: Error(kCorrupt) where a token or the checksum is wrong. A raw file has no checksum.
  void verify() const;
  // Throws Error(kBadConfig) unless the file was made by this tokenizer; a file that doesn't say
  // passes if its vocabulary is no larger.
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
  std::int64_t width_ = 2;  // bytes a token
  std::uint32_t sum_ = 0;
  TokenFileInfo info_;
};

struct TokenSplit {
  Range train;
  Range validation;
};
// The last `validation` part of the file (0 to below 1) beside the rest. With an end token the cut
// is moved on to behind the next one, so that no document is in both. Throws
// Error(kInvalidArgument) for a part out of range or one that leaves nothing to train on.
TokenSplit split_tokens(const TokenFile& file, double validation);

}  // namespace weft::data::text

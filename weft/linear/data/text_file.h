// Text files as bytes in pieces, plain or compressed by gzip; numbers, and words in messages.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "weft/base/file.h"

namespace weft::linear {

class TextFile {
 public:
  // Throws Error(kInvalidArgument) if the file cannot be opened or is a folder.
  explicit TextFile(const std::string& path);
  ~TextFile();
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;

  // True if the content is compressed. Then only a read from the start is possible. The first call
  // reads the first piece, and throws Error(kCorrupt) for a file that is no text, such as a Git LFS
  // pointer or UTF-16.
  bool is_gzip();
  // True for a regular file, which has a size and can be read from any place.
  bool is_regular() const { return regular_; }
  // Bytes of a regular file.
  std::uint64_t size() const { return size_; }

  // Continues at this byte of a plain regular file.
  void seek(std::uint64_t offset);
  // The next piece, at most 1 MiB; empty at the end. It is valid until the next call. Throws
  // Error(kCorrupt) for damaged or truncated gzip data, and Error(kUnavailable) if a read fails.
  std::string_view next();

 private:
  struct Inflate;
  std::string_view read();
  std::string_view inflate_some();

  std::string path_;
  UniqueFd file_;
  bool regular_ = false;
  bool known_ = false;  // Whether it is a gzip file.
  std::uint64_t size_ = 0;
  std::string_view first_;            // Piece that was read to find out the format.
  std::unique_ptr<char[]> raw_;       // A piece as it is in the file.
  std::unique_ptr<Inflate> inflate_;  // For a gzip file.
};

// The finite decimal number that the whole word is: an optional sign, digits, point and exponent.
// A number too small for float64 is 0. None for anything else: an empty word, "nan", "inf", a
// number too large for float64, hexadecimal digits.
std::optional<double> parse_number(std::string_view word);

// The word in quotes for a message of one line: at most 40 bytes of it, control characters and
// bytes above ASCII as \xNN.
std::string shown(std::string_view word);

}  // namespace weft::linear

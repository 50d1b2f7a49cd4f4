// Reads the bytes of a text file in pieces: a range of a plain file, or all of a gzip file.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "weft/base/file.h"

namespace weft::linear::internal {

class TextFile {
 public:
  // Throws Error(kInvalidArgument) if the file cannot be opened or is a folder.
  explicit TextFile(const std::string& path);
  ~TextFile();
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;

  // True if the content is compressed. Then only a read from the start is possible. The first call
  // reads the first piece.
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
  std::size_t read(char* to, std::size_t bytes);
  std::string_view inflate_some();
  [[noreturn]] void fail_gzip(const std::string& reason) const;

  std::string path_;
  UniqueFd file_;
  bool regular_ = false;
  std::optional<bool> gzip_;
  bool in_member_ = false;  // Inside of a gzip member; a file may have several.
  std::uint64_t size_ = 0;
  std::string_view first_;  // Bytes that were read to find out the format.
  z_stream zip_{};
  std::unique_ptr<char[]> raw_, text_;  // A piece as it is in the file, and inflated.
};

}  // namespace weft::linear::internal

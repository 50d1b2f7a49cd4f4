// The first 64 bytes of a token file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "weft/data/text/token_file.h"

namespace weft::data::text::internal {

inline constexpr std::size_t kTokenHeaderBytes = 64;

struct TokenHeader {
  std::int64_t count = 0;
  std::int64_t width = 2;
  std::uint32_t sum = 0;
  TokenFileInfo info;
};

inline std::int64_t token_width(std::int64_t vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

std::string render_token_header(const TokenHeader& header);
// `bytes` begins with the header. `file_bytes` is the length of the whole file. Throws
// Error(kCorrupt) as TokenFile::open().
TokenHeader parse_token_header(std::string_view bytes, std::int64_t file_bytes,
                               const std::string& path);

}  // namespace weft::data::text::internal

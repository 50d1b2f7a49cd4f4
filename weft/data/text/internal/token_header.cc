#include "weft/data/text/internal/token_header.h"

#include <bit>
#include <cstring>
#include <limits>

#include "weft/base/crc32c.h"
#include "weft/base/error.h"

namespace weft::data::text::internal {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read as they lie");
constexpr std::string_view kMagic = "WEFTTOK1";
constexpr std::uint32_t kVersion = 1;

struct Wire {
  char magic[8];
  std::uint32_t version, width;
  std::uint64_t count;
  std::uint32_t vocab, fingerprint;
  std::int32_t end_token;
  std::uint32_t sum;
  std::uint32_t zero[5];
  std::uint32_t header_sum;
};
static_assert(sizeof(Wire) == kTokenHeaderBytes);

std::uint32_t sum_of(const Wire& wire) { return crc32c(&wire, offsetof(Wire, header_sum)); }

}  // namespace

std::string render_token_header(const TokenHeader& header) {
  Wire wire{};
  std::memcpy(wire.magic, kMagic.data(), kMagic.size());
  wire.version = kVersion;
  wire.width = static_cast<std::uint32_t>(header.width);
  wire.count = static_cast<std::uint64_t>(header.count);
  wire.vocab = static_cast<std::uint32_t>(header.info.vocab_size);
  wire.fingerprint = header.info.fingerprint;
  wire.end_token = header.info.end_token.value_or(-1);
  wire.sum = header.sum;
  wire.header_sum = sum_of(wire);
  return {reinterpret_cast<const char*>(&wire), sizeof wire};
}

TokenHeader parse_token_header(std::string_view bytes, std::int64_t file_bytes,
                               const std::string& path) {
  const auto refuse = [&](const std::string& what) {
    throw Error(Errc::kCorrupt, path + ": " + what);
  };
  Wire wire{};
  // This is not memcpy(), because the data() of an empty file may be null.
  bytes.copy(reinterpret_cast<char*>(&wire), sizeof wire);
  if (bytes.size() < kMagic.size() || std::string_view(wire.magic, sizeof wire.magic) != kMagic) {
    refuse("not a token file: it does not begin with " + std::string(kMagic));
  }
  if (bytes.size() < sizeof wire)
    refuse("ends within its header of " + std::to_string(sizeof wire) + " bytes");
  if (wire.version != kVersion)
    refuse("version " + std::to_string(wire.version) + "; this weft reads version " +
           std::to_string(kVersion));
  if (wire.header_sum != sum_of(wire))
    refuse("the header's checksum is wrong: the file is damaged");
  constexpr std::uint32_t kMost = std::numeric_limits<std::int32_t>::max();
  if (wire.vocab == 0 || wire.vocab > kMost)
    refuse("a vocabulary of " + std::to_string(wire.vocab));
  if (wire.width != token_width(wire.vocab))
    refuse(std::to_string(wire.width) + " bytes a token for a vocabulary of " +
           std::to_string(wire.vocab));
  if (wire.end_token < -1 || wire.end_token >= static_cast<std::int64_t>(wire.vocab)) {
    refuse("end token " + std::to_string(wire.end_token) + " is not in the vocabulary of " +
           std::to_string(wire.vocab));
  }
  const auto data_bytes =
      static_cast<std::uint64_t>(file_bytes - static_cast<std::int64_t>(sizeof wire));
  if (data_bytes % wire.width != 0 || data_bytes / wire.width != wire.count) {
    refuse("its header says " + std::to_string(wire.count) + " tokens of " +
           std::to_string(wire.width) + " bytes, but " + std::to_string(data_bytes) +
           " bytes follow: truncated, or written to since");
  }
  for (const std::uint32_t word : wire.zero) {
    if (word != 0) refuse("reserved bytes of the header are not zero");
  }
  TokenHeader header{static_cast<std::int64_t>(wire.count),
                     wire.width,
                     wire.sum,
                     {wire.vocab, wire.fingerprint, std::nullopt}};
  if (wire.end_token >= 0) header.info.end_token = wire.end_token;
  return header;
}

}  // namespace weft::data::text::internal

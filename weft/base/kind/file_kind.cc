#include "weft/base/kind/file_kind.h"

#include <algorithm>
#include <array>

#include "weft/base/internal/utf8.h"

namespace weft {
namespace {

using namespace std::string_view_literals;

struct Kind {
  std::string_view begin;
  const char* what;
};

constexpr const char* kUtf16 = "text in UTF-16; convert it: iconv -f UTF-16 -t UTF-8";
constexpr const char* kUtf32 = "text in UTF-32; convert it: iconv -f UTF-32 -t UTF-8";

// The first that fits counts: the mark of UTF-32 begins with that of UTF-16.
constexpr std::array kKinds = {
    Kind{"version https://git-lfs.github.com/spec/"sv,
         "a Git LFS pointer, not the file itself; fetch the file with: git lfs pull"},
    Kind{"/annex/objects/"sv,
         "a git-annex pointer, not the file itself; fetch the file with: git annex get"},
    Kind{"\xFF\xFE\0\0"sv, kUtf32},
    Kind{"\0\0\xFE\xFF"sv, kUtf32},
    Kind{"\xFF\xFE"sv, kUtf16},
    Kind{"\xFE\xFF"sv, kUtf16},
    Kind{"\x1F\x8B"sv, "compressed by gzip; unpack it first"},
    Kind{"BZh91AY&SY"sv, "compressed by bzip2; unpack it first"},
    Kind{"\xFD"
         "7zXZ\0"sv,
         "compressed by xz; unpack it first"},
    Kind{"\x28\xB5\x2F\xFD"sv, "compressed by zstd; unpack it first"},
    Kind{"PK\x03\x04"sv, "a zip archive, as PyTorch writes .pt and .bin files"},
    Kind{"7z\xBC\xAF\x27\x1C"sv, "a 7z archive; unpack it first"},
    Kind{"GGUF\x02\0"sv, "in llama.cpp's format GGUF"},
    Kind{"GGUF\x03\0"sv, "in llama.cpp's format GGUF"},
    Kind{"\x89HDF\r\n"sv, "in the format HDF5"},
    Kind{"\x93NUMPY"sv, "an array of NumPy"},
    Kind{"PAR1\x15"sv, "in the format Parquet"},
    Kind{"%PDF-"sv, "a PDF; extract its text first"},
    Kind{"\x80\x02"sv, "a pickle of Python"},
    Kind{"\x80\x04\x95"sv, "a pickle of Python"},
    Kind{"\x7F"
         "ELF"sv,
         "a program"},
};

}  // namespace

std::optional<std::string> wrong_kind(std::string_view head) {
  const auto found = std::find_if(kKinds.begin(), kKinds.end(),
                                  [&](const Kind& kind) { return head.starts_with(kind.begin); });
  if (found == kKinds.end()) return std::nullopt;
  return found->what;
}

std::optional<std::string> doubt_of_text(std::string_view head, bool is_whole) {
  if (head.find('\0') != std::string_view::npos) {
    return "has zero bytes, as binary files have and text in UTF-16; convert such text: iconv -f "
           "UTF-16LE -t UTF-8";
  }
  constexpr std::size_t kLongest = 4;  // bytes of a character
  for (std::size_t at = 0; at < head.size();) {
    const std::size_t length = internal::utf8_length(head, at);
    if (length == 0 && !is_whole && head.size() - at < kLongest) break;
    if (length == 0) {
      return "is not in UTF-8 from byte " + std::to_string(at) +
             " on; convert text of another encoding, such as: iconv -f LATIN1 -t UTF-8";
    }
    at += length;
  }
  return std::nullopt;
}

std::size_t mark_bytes(std::string_view text) { return text.starts_with("\xEF\xBB\xBF") ? 3 : 0; }

}  // namespace weft

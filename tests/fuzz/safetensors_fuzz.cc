// Headers of safetensors files, and the manifest and indices beside them.
#include <cstring>

#include "tests/fuzz/fuzz.h"
#include "weft/base/crc32c.h"
#include "weft/checkpoint/internal/header.h"
#include "weft/checkpoint/internal/index.h"
#include "weft/checkpoint/internal/manifest.h"

using weft::Errc;
using weft::fuzz::accepts;
using weft::fuzz::check;
using namespace weft::checkpoint::internal;

namespace {

void parse_as_header(std::string_view text, std::int64_t data_bytes) {
  accepts({Errc::kCorrupt}, [&] {
    const Header header = parse_header(text, data_bytes, "fuzz");
    std::int64_t at = 0;
    for (const Entry& entry : header.entries) {
      check(entry.begin == at && entry.end - entry.begin == bytes_of(entry.dtype, entry.shape),
            "tensors lie one after the other");
      at = entry.end;
    }
    check(at == data_bytes, "tensors fill the file");
    const std::string again = render_header(header);
    std::uint64_t length = 0;
    std::memcpy(&length, again.data(), sizeof length);
    check(length + kLengthBytes == again.size(), "a header says its length");
    parse_header(std::string_view(again).substr(kLengthBytes), data_bytes, "fuzz");
  });
}

void parse_as_manifest(const std::string& text) {
  accepts({Errc::kCorrupt}, [&] {
    const Manifest manifest = parse_manifest(text, "fuzz");
    for (const auto& [name, sums] : manifest.files) {
      check(is_plain_name(name) && sums.bytes >= 0, "a manifest names plain files");
      check(static_cast<std::int64_t>(sums.chunks.size()) ==
                chunks_of(sums.bytes, manifest.chunk_bytes),
            "a checksum for each chunk");
    }
    check(parse_manifest(render_manifest(manifest), "fuzz") == manifest,
          "a manifest reads back as the same");
  });
}

void parse_as_index(std::string_view text) {
  accepts({Errc::kCorrupt}, [&] {
    const Index index = parse_index(text, "fuzz");
    for (const auto& [key, file] : index.files) {
      check(is_plain_name(file), "an index names plain files");
      const SliceName slice = parse_slice_name(key, "fuzz");
      const auto& shape = index.shapes.at(slice.tensor);
      check(slice.offset.empty() || slice.offset.size() == shape.size(),
            "a slice has its tensor's dimensions");
      for (std::size_t d = 0; d < slice.offset.size(); ++d)
        check(slice.offset[d] + slice.sizes[d] <= shape[d], "a slice lies in its tensor");
    }
    check(parse_index(render_index(index), "fuzz") == index, "an index reads back as the same");
  });
}

void parse_as_slice_name(const std::string& text) {
  accepts({Errc::kCorrupt}, [&] {
    const SliceName slice = parse_slice_name(text, "fuzz");
    for (const std::int64_t size : slice.sizes)
      check(size >= 0, "a rectangle has no negative size");
    if (!slice.offset.empty())
      check(parse_slice_name(render_slice_name(slice), "fuzz") == slice,
            "a slice's name reads back as the same");
  });
}

}  // namespace

void weft::fuzz::one_input(const std::uint8_t* data, std::size_t size) {
  weft::fuzz::Bytes bytes(data, size);
  const auto data_bytes = bytes.number<std::uint16_t>();
  const std::string text(bytes.rest());
  parse_as_header(text, data_bytes);
  parse_as_manifest(text);
  char end[16];
  std::snprintf(end, sizeof end, "end %08x\n", weft::crc32c(text.data(), text.size()));
  parse_as_manifest(text + end);
  parse_as_index(text);
  parse_as_slice_name(text);
}

#include "weft/checkpoint/internal/header.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "weft/base/error.h"
#include "weft/checkpoint/internal/json.h"

namespace weft::checkpoint::internal {
namespace {

constexpr std::pair<DType, const char*> kNames[] = {
    {DType::kF64, "F64"}, {DType::kF32, "F32"}, {DType::kF16, "F16"}, {DType::kBF16, "BF16"}, {DType::kI64, "I64"},
    {DType::kI32, "I32"}, {DType::kI16, "I16"}, {DType::kI8, "I8"},   {DType::kU8, "U8"},     {DType::kBool, "BOOL"},
};

constexpr std::size_t kMaxDims = 64;  // libtorch's own limit

DType read_dtype(JsonReader& json) {
  const std::string name = json.string();
  for (const auto& [dtype, text] : kNames) {
    if (name == text) return dtype;
  }
  json.fail("unknown dtype \"" + name + "\"");
}

std::vector<std::int64_t> read_integers(JsonReader& json, std::size_t most) {
  std::vector<std::int64_t> values;
  json.expect('[');
  if (json.take(']')) return values;
  do {
    if (values.size() == most) json.fail("more than " + std::to_string(most) + " numbers in a list");
    values.push_back(json.integer());
  } while (json.take(','));
  json.expect(']');
  return values;
}

Entry read_entry(JsonReader& json, std::string name) {
  std::optional<DType> dtype;
  std::optional<std::vector<std::int64_t>> shape, offsets;
  json.expect('{');
  do {
    const std::string key = json.string();
    json.expect(':');
    if (key == "dtype" && !dtype) {
      dtype = read_dtype(json);
    } else if (key == "shape" && !shape) {
      shape = read_integers(json, kMaxDims);
    } else if (key == "data_offsets" && !offsets) {
      offsets = read_integers(json, 2);
    } else {
      json.fail("tensor \"" + name + "\" has the key \"" + key + "\" twice, or it is unknown");
    }
  } while (json.take(','));
  json.expect('}');
  if (!dtype || !shape || !offsets || offsets->size() != 2) {
    json.fail("tensor \"" + name + "\" lacks dtype, shape or two data_offsets");
  }
  return {std::move(name), *dtype, std::move(*shape), offsets->at(0), offsets->at(1)};
}

std::map<std::string, std::string> read_metadata(JsonReader& json) {
  std::map<std::string, std::string> metadata;
  json.expect('{');
  if (json.take('}')) return metadata;
  do {
    std::string key = json.string();
    json.expect(':');
    if (!metadata.emplace(key, json.string()).second) json.fail("the metadata has \"" + key + "\" twice");
  } while (json.take(','));
  json.expect('}');
  return metadata;
}

void check_layout(std::vector<Entry>& entries, std::int64_t data_bytes, const std::string& file) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::int64_t at = 0;
  const auto fail = [&](const std::string& what) { throw Error(Errc::kCorrupt, file + ": " + what); };
  for (const Entry& entry : entries) {
    const std::string who = "tensor \"" + entry.name + "\" ";
    if (entry.begin != at)
      fail(who + "starts at " + std::to_string(entry.begin) + ", not where the one before ends, " + std::to_string(at));
    const std::int64_t bytes = bytes_of(entry.dtype, entry.shape);
    if (bytes < 0) fail(who + "has a shape beyond 2^63 bytes");
    if (entry.end < entry.begin || entry.end - entry.begin != bytes) fail(who + "has offsets that don't fit its shape and dtype");
    if (entry.end > data_bytes) fail(who + "ends beyond the end of the file");
    at = entry.end;
  }
  if (at != data_bytes) fail(std::to_string(data_bytes - at) + " bytes at the end belong to no tensor");
}

}  // namespace

std::int64_t bytes_of(DType dtype, const std::vector<std::int64_t>& shape) {
  std::int64_t bytes = static_cast<std::int64_t>(size_of(dtype));
  bool empty = false;
  // A zero does not excuse other sizes whose product overflows: libtorch multiplies them for strides.
  for (const std::int64_t size : shape) {
    if (size < 0) return -1;
    if (size == 0) {
      empty = true;
    } else if (bytes > std::numeric_limits<std::int64_t>::max() / size) {
      return -1;
    } else {
      bytes *= size;
    }
  }
  return empty ? 0 : bytes;
}

Header parse_header(std::string_view text, std::int64_t data_bytes, const std::string& file) {
  JsonReader json(text, file, kLengthBytes);
  if (text.empty() || text.front() != '{') json.fail("the header does not start with '{'");
  Header header;
  std::set<std::string> seen;
  json.expect('{');
  if (!json.take('}')) {
    do {
      std::string name = json.string();
      if (!seen.insert(name).second) json.fail("\"" + name + "\" occurs twice");
      json.expect(':');
      if (name == "__metadata__") {
        header.metadata = read_metadata(json);
      } else {
        header.entries.push_back(read_entry(json, std::move(name)));
      }
    } while (json.take(','));
    json.expect('}');
  }
  json.expect_end();
  check_layout(header.entries, data_bytes, file);
  return header;
}

std::string render_header(const Header& header) {
  std::string json = "{";
  const auto separate = [&] {
    if (json.back() != '{') json += ',';
  };
  if (!header.metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : header.metadata) {
      separate();
      json += json_quote(key) + ":" + json_quote(value);
    }
    json += '}';
  }
  for (const Entry& entry : header.entries) {
    separate();
    const auto name = std::find_if(std::begin(kNames), std::end(kNames), [&](const auto& n) { return n.first == entry.dtype; });
    std::string shape;
    for (const std::int64_t size : entry.shape) {
      if (!shape.empty()) shape += ',';
      shape += std::to_string(size);
    }
    json += json_quote(entry.name) + ":{\"dtype\":\"" + name->second + "\",\"shape\":[" + shape + "],\"data_offsets\":[" +
            std::to_string(entry.begin) + "," + std::to_string(entry.end) + "]}";
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  std::string out(kLengthBytes, '\0');
  for (int i = 0; i < kLengthBytes; ++i) out[i] = static_cast<char>(json.size() >> (8 * i) & 0xff);
  return out + json;
}

}  // namespace weft::checkpoint::internal

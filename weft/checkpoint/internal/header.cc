#include "weft/checkpoint/internal/header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/json/json.h"

namespace weft::checkpoint::internal {
namespace {

using nlohmann::json;

constexpr std::pair<DType, const char*> kNames[] = {
    {DType::kF64, "F64"}, {DType::kF32, "F32"},   {DType::kF16, "F16"}, {DType::kBF16, "BF16"},
    {DType::kI64, "I64"}, {DType::kI32, "I32"},   {DType::kI16, "I16"}, {DType::kI8, "I8"},
    {DType::kU8, "U8"},   {DType::kBool, "BOOL"},
};

[[noreturn]] void fail(const std::string& file, const std::string& what) {
  throw Error(Errc::kCorrupt, file + ": " + what);
}

// A member of a tensor's entry, with its place for error messages.
struct Field {
  const json& value;
  std::string place;  // "FILE: tensor "NAME": KEY"
};

DType read_dtype(const Field& field) {
  for (const auto& [dtype, text] : kNames) {
    if (field.value == text) return dtype;
  }
  std::string known;
  for (const auto& [dtype, text] : kNames) known += (known.empty() ? "" : ", ") + std::string(text);
  fail(field.place, "unknown dtype " + field.value.dump() + "; weft reads " + known);
}

std::vector<std::int64_t> read_integers(const Field& field, std::size_t most) {
  if (!field.value.is_array()) fail(field.place, "expected a list");
  if (field.value.size() > most)
    fail(field.place, "more than " + std::to_string(most) + " numbers in a list");
  std::vector<std::int64_t> values;
  for (const json& item : field.value) {
    constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
    if (!item.is_number_unsigned() || item.get<std::uint64_t>() > kMost) {
      fail(field.place, "expected a whole number from 0 to 2^63 - 1, got " + item.dump());
    }
    values.push_back(item.get<std::int64_t>());
  }
  return values;
}

Entry read_entry(const std::string& name, const json& value, const std::string& file) {
  const std::string who = file + ": tensor " + json(name).dump();
  if (!value.is_object()) fail(who, "expected an object");
  for (const auto& [key, ignored] : value.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets")
      fail(who, "unknown key " + json(key).dump());
  }
  const auto field = [&](const char* key) -> Field {
    if (!value.contains(key)) fail(who, std::string("lacks ") + key);
    return {value[key], who + ": " + key};
  };
  const std::vector<std::int64_t> offsets = read_integers(field("data_offsets"), 2);
  if (offsets.size() != 2) fail(who, "lacks two data_offsets");
  return {name, read_dtype(field("dtype")), read_integers(field("shape"), kMaxDims), offsets[0],
          offsets[1]};
}

std::map<std::string, std::string> read_metadata(const json& value, const std::string& file) {
  if (!value.is_object()) fail(file, "expected an object as __metadata__");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) fail(file, "expected a string as __metadata__ " + json(key).dump());
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

void check_layout(std::vector<Entry>& entries, std::int64_t data_bytes, const std::string& file) {
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::int64_t at = 0;
  for (const Entry& entry : entries) {
    const std::string who = "tensor \"" + entry.name + "\" ";
    if (entry.begin != at)
      fail(file, who + "starts at " + std::to_string(entry.begin) +
                     ", not where the one before ends, " + std::to_string(at));
    const std::int64_t bytes = bytes_of(entry.dtype, entry.shape);
    if (bytes < 0) fail(file, who + "has a shape beyond 2^63 bytes");
    if (entry.end < entry.begin || entry.end - entry.begin != bytes)
      fail(file, who + "has offsets that don't fit its shape and dtype");
    if (entry.end > data_bytes) fail(file, who + "ends beyond the end of the file");
    at = entry.end;
  }
  if (at != data_bytes)
    fail(file, std::to_string(data_bytes - at) + " bytes at the end belong to no tensor");
}

}  // namespace

std::int64_t bytes_of(DType dtype, const std::vector<std::int64_t>& shape) {
  std::int64_t bytes = static_cast<std::int64_t>(size_of(dtype));
  bool empty = false;
  // The product of the other sizes must not overflow even if one size is 0: libtorch multiplies
  // them for strides.
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
  if (text.empty() || text.front() != '{') fail(file, "the header does not start with '{'");
  constexpr int kDepth = 3;  // header, entry, list
  const json document = parse_json(text, file, {.depth = kDepth, .unique_keys = true});
  Header header;
  for (const auto& [name, value] : document.items()) {
    if (name == "__metadata__") {
      header.metadata = read_metadata(value, file);
    } else {
      header.entries.push_back(read_entry(name, value, file));
    }
  }
  check_layout(header.entries, data_bytes, file);
  return header;
}

std::int64_t lay_out(std::vector<Entry>& entries) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    const std::size_t one = size_of(a.dtype), other = size_of(b.dtype);
    return one != other ? one > other : a.name < b.name;
  });
  std::int64_t at = 0;
  for (Entry& entry : entries) {
    entry.begin = at;
    entry.end = at += bytes_of(entry.dtype, entry.shape);
  }
  return at;
}

std::string render_header(const Header& header) {
  std::string text;
  try {
    nlohmann::ordered_json::object_t document;  // emplace() would compare all names.
    if (!header.metadata.empty()) document.emplace_back("__metadata__", header.metadata);
    for (const Entry& entry : header.entries) {
      const auto name = std::find_if(std::begin(kNames), std::end(kNames),
                                     [&](const auto& n) { return n.first == entry.dtype; });
      document.emplace_back(entry.name,
                            nlohmann::ordered_json{{"dtype", name->second},
                                                   {"shape", entry.shape},
                                                   {"data_offsets", {entry.begin, entry.end}}});
    }
    text = nlohmann::ordered_json(std::move(document)).dump();
  } catch (const json::type_error&) {
    throw Error(Errc::kInvalidArgument, "a name or value is not UTF-8 and cannot be written");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  WEFT_REQUIRE(text.size() <= static_cast<std::size_t>(kMaxHeaderBytes),
               "the header of a safetensors file would be larger than the " +
                   std::to_string(kMaxHeaderBytes) +
                   " bytes that it may have; write fewer tensors into one file");
  std::string out(kLengthBytes, '\0');
  for (int i = 0; i < kLengthBytes; ++i) out[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  return out + text;
}

}  // namespace weft::checkpoint::internal

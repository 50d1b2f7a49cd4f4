#include "weft/checkpoint/internal/index.h"

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/json/json.h"
#include "weft/checkpoint/internal/header.h"
#include "weft/checkpoint/internal/manifest.h"

namespace weft::checkpoint::internal {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  throw Error(Errc::kCorrupt, file + ": " + what);
}

// Returns any bytes as printable text in one line.
std::string quoted(const std::string& name) {
  return json(name).dump(-1, ' ', false, json::error_handler_t::replace);
}

const json& object(const json& in, const char* key, const std::string& file) {
  if (!in.contains(key) || !in[key].is_object())
    refuse(file, std::string("expected an object as ") + key);
  return in[key];
}

std::int64_t read_size(const json& value, const std::string& where) {
  if (!value.is_number_unsigned() ||
      value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
    refuse(where, "expected whole numbers of at least 0");
  }
  return value.get<std::int64_t>();
}

std::vector<std::int64_t> read_shape(const json& value, const std::string& where) {
  if (!value.is_array() || value.size() > kMaxDims)
    refuse(where, "expected a list of at most 64 numbers");
  std::vector<std::int64_t> shape;
  for (const json& size : value) shape.push_back(read_size(size, where));
  return shape;
}

void check_slices(const Index& index, const std::string& file) {
  for (const auto& [key, in] : index.files) {
    const SliceName slice = parse_slice_name(key, file);
    const auto shape = index.shapes.find(slice.tensor);
    bool fits = shape != index.shapes.end() &&
                (slice.offset.empty() || slice.offset.size() == shape->second.size());
    for (std::size_t d = 0; fits && d < slice.offset.size(); ++d)
      fits = slice.offset[d] + slice.sizes[d] <= shape->second[d];
    if (!fits) refuse(file, quoted(key) + " does not fit a shape of its tensor");
  }
}

// Parses a number at `at` and moves `at` behind it. Returns false if there is none.
bool read_number(const std::string& text, std::size_t& at, std::int64_t& number) {
  const char* const begin = text.data() + at;
  if (at >= text.size() || *begin < '0' || *begin > '9') return false;
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), number);
  at += static_cast<std::size_t>(end - begin);
  return error == std::errc();
}

}  // namespace

std::string render_index(const Index& index) {
  try {
    const nlohmann::ordered_json document = {{"metadata", {{"total_size", index.total_bytes}}},
                                             {"shapes", json(index.shapes)},
                                             {"weight_map", json(index.files)}};
    return document.dump(1) + "\n";
  } catch (const json::type_error&) {
    throw Error(Errc::kInvalidArgument,
                "checkpoint: a tensor's name is not UTF-8 and cannot be written");
  }
}

Index parse_index(std::string_view text, const std::string& file) {
  constexpr int kDepth = 3;  // index, shapes, shape
  const json document = parse_json(text, file, {.depth = kDepth, .unique_keys = true});
  if (!document.is_object()) refuse(file, "expected an object");
  Index index;
  const json& metadata = object(document, "metadata", file);
  if (metadata.contains("total_size"))
    index.total_bytes = read_size(metadata["total_size"], file + ": total_size");
  for (const auto& [name, shape] : object(document, "shapes", file).items()) {
    index.shapes.emplace(name, read_shape(shape, file + ": the shape of " + quoted(name)));
  }
  for (const auto& [name, in] : object(document, "weight_map", file).items()) {
    if (!in.is_string() || !is_plain_name(in.get<std::string>()))
      refuse(file, quoted(name) + " has no file's name");
    index.files.emplace(name, in.get<std::string>());
  }
  check_slices(index, file);
  return index;
}

std::string render_slice_name(const SliceName& slice) {
  std::string text = slice.tensor + "[";
  for (std::size_t d = 0; d < slice.offset.size(); ++d) {
    text += (d > 0 ? "," : "") + std::to_string(slice.offset[d]) + ":" +
            std::to_string(slice.offset[d] + slice.sizes[d]);
  }
  return text + "]";
}

SliceName parse_slice_name(const std::string& name, const std::string& where) {
  const std::size_t open = name.rfind('[');
  if (name.empty() || name.back() != ']' || open == std::string::npos) return {name, {}, {}};
  SliceName slice{name.substr(0, open), {}, {}};
  std::size_t at = open + 1;
  bool good = true;
  do {
    std::int64_t begin = 0, end = 0;
    good = read_number(name, at, begin) && name[at] == ':' && read_number(name, ++at, end) &&
           begin <= end;
    slice.offset.push_back(begin);
    slice.sizes.push_back(end - begin);
  } while (good && slice.offset.size() < kMaxDims && name[at] == ',' && ++at < name.size());
  if (!good || at + 1 != name.size())
    refuse(where, quoted(name.substr(0, 200)) + " is no slice's name");
  return slice;
}

}  // namespace weft::checkpoint::internal

#include "weft/base/json/json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/json/json_writer.h"
#include "weft/base/kind/file_kind.h"

namespace weft {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

void write_value(const ordered_json& value, JsonWriter& out) {
  switch (value.type()) {
    case ordered_json::value_t::object:
      out.begin_object();
      for (const auto& [key, member] : value.items()) write_value(member, out.key(key));
      out.end_object();
      return;
    case ordered_json::value_t::array:
      out.begin_array();
      for (const ordered_json& item : value) write_value(item, out);
      out.end_array();
      return;
    case ordered_json::value_t::string: out.value(value.get_ref<const std::string&>()); return;
    case ordered_json::value_t::number_float: out.value(value.get<double>()); return;
    default: out.raw(value.dump());
  }
}

}  // namespace

json parse_json(std::string_view text, const std::string& name, const JsonLimits& limits) {
  const auto fail = [&](const std::string& what) {
    throw Error(Errc::kCorrupt, name + ": " + what);
  };
  if (const auto kind = wrong_kind(text)) throw Error(Errc::kCorrupt, name + " is " + *kind);
  // The parser takes a zero byte for the end of its input.
  if (text.find('\0') != std::string_view::npos) fail("not JSON: it contains a zero byte");
  std::vector<std::set<std::string>> keys;  // of the objects around the current value
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    const bool object = event == json::parse_event_t::object_start;
    if ((object || event == json::parse_event_t::array_start) && depth >= limits.depth) {
      fail("nested deeper than " + std::to_string(limits.depth));
    }
    if (!limits.unique_keys) return true;
    if (object) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      fail("the key " + value.dump() + " occurs twice in an object");
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::exception& error) {
    constexpr std::size_t kLongest = 200;  // The message quotes what was read.
    const std::string_view what = error.what();
    const std::size_t begin =
        what.find("] ");  // "[json.exception.parse_error.101] parse error at …"
    fail("not JSON: " +
         std::string(what.substr(begin == std::string_view::npos ? 0 : begin + 2, kLongest)));
  }
  return {};
}

std::string json_line(const ordered_json& document) {
  std::string text;
  JsonWriter out(text, JsonStyle::kSpaced);
  write_value(document, out);
  return text;
}

}  // namespace weft

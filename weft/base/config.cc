#include "weft/base/config.h"

#define TOML_HEADER_ONLY 1
// toml++ 3.3 asserts a condition that it also checks and reports: without this, a malformed key
// would end a debug build instead of throwing an error.
#define TOML_ASSERT(condition) static_assert(true)
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/internal/config_value.h"
#include "weft/base/internal/toml_text.h"
#include "weft/base/internal/utf8.h"
#include "weft/base/kind/file_kind.h"
#include "weft/base/text/words.h"

namespace weft {
namespace {

using internal::expectation;
using internal::fits;
using internal::to_toml;

constexpr int kMaxDepth = 16;
// Parts of a dotted key. With toml++'s limit of nested values, it bounds the depth of tables, which
// toml++ frees by recursion.
constexpr std::size_t kMaxParts = 64;
constexpr const char* kBareKey = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";

[[noreturn]] void fail(const std::string& where, const std::string& message) {
  throw Error(Errc::kBadConfig, where + ": " + message);
}

std::string last_part(std::string_view key) { return std::string(key.substr(key.rfind('.') + 1)); }

[[noreturn]] void fail_unknown(const std::string& where, const std::string& key,
                               const Schema& schema) {
  std::vector<std::string> names;
  for (const Key& known : schema.keys()) names.push_back(known.name);
  auto near = nearest(key, names);
  if (!near) {  // the key may have the right name in the wrong table
    const auto same = std::find_if(names.begin(), names.end(), [&](const auto& name) {
      return last_part(name) == last_part(key);
    });
    if (same != names.end()) near = *same;
  }
  fail(where, "unknown key " + key + (near ? "; did you mean " + *near + "?" : ""));
}

template <class T>
std::optional<T> scalar_of(const toml::node& node) {
  if constexpr (std::is_same_v<T, double>) {
    if (const auto* whole = node.as_integer()) return static_cast<double>(whole->get());
  }
  if (const auto* value = node.as<T>()) return value->get();
  return std::nullopt;
}

// Returns the node as a value of the same type as `like`; nullopt if it has another type.
std::optional<ConfigValue> value_of(const toml::node& node, const ConfigValue& like) {
  return std::visit(
      [&]<class T>(const T&) -> std::optional<ConfigValue> {
        if constexpr (std::is_same_v<T, bool> || std::is_arithmetic_v<T> ||
                      std::is_same_v<T, std::string>) {
          if (auto value = scalar_of<T>(node)) return ConfigValue(std::move(*value));
          return std::nullopt;
        } else {
          const toml::array* array = node.as_array();
          if (array == nullptr) return std::nullopt;
          T list;
          for (const toml::node& element : *array) {
            auto value = scalar_of<typename T::value_type>(element);
            if (!value) return std::nullopt;
            list.push_back(std::move(*value));
          }
          return ConfigValue(std::move(list));
        }
      },
      like);
}

// Writes a value in the format of toml++. Arrays are written here: toml++ 3.3 estimates their width
// to break lines, which is undefined behavior for a number between 0 and 0.1.
void write(std::ostream& text, const toml::node& node) {
  const char* between = " ";
  if (const toml::array* array = node.as_array(); array != nullptr) {
    text << '[';
    for (const toml::node& element : *array) write(text << std::exchange(between, ", "), element);
    text << (array->empty() ? "]" : " ]");
  } else if (const toml::table* table = node.as_table(); table != nullptr) {
    text << '{';
    for (const auto& [key, value] : *table) {
      const bool bare =
          !key.str().empty() && key.str().find_first_not_of(kBareKey) == std::string_view::npos;
      text << std::exchange(between, ", ")
           << (bare ? std::string(key.str()) : to_toml(ConfigValue(std::string(key.str()))))
           << " = ";
      write(text, value);
    }
    text << (table->empty() ? "}" : " }");
  } else {
    node.visit(
        [&](const auto& value) { text << toml::toml_formatter(value, toml::format_flags::none); });
  }
}

// The value as text for a message: shortened, on one line.
std::string shown(const toml::node& node) {
  std::ostringstream text;
  write(text, node);
  std::string line = text.str();
  std::replace(line.begin(), line.end(), '\n', ' ');
  if (line.size() <= 60) return line;
  std::size_t end = 57;
  while (end > 0 && (line[end] & 0xC0) == 0x80) --end;  // do not cut inside a character
  return line.substr(0, end) + "...";
}

[[noreturn]] void fail_value(const std::string& where, const Key& key, const std::string& shown) {
  fail(where, key.name + " = " + shown + ", but " + expectation(key) + " is expected");
}

ConfigValue checked_value(const toml::node& node, const Key& key, const std::string& where) {
  auto value = value_of(node, key.fallback);
  if (!value || !fits(*value, key.limits)) fail_value(where, key, shown(node));
  return std::move(*value);
}

struct Found {
  const Key* key;
  const toml::node* node;
  std::string where;
};

// Visits every value of a file with its key. Throws at the first key that the schema does not have.
struct Collector {
  const Schema& schema;
  const std::string& source;
  std::vector<Found> found = {};

  void collect(const toml::table& table, const std::string& prefix, int depth) {
    for (const auto& [name, node] : table) {
      const bool bare =
          !name.str().empty() && name.str().find_first_not_of(kBareKey) == std::string_view::npos;
      // A quoted key that contains dots differs from the dotted key.
      const std::string path =
          prefix + (bare ? std::string(name.str()) : to_toml(ConfigValue(std::string(name.str()))));
      take(node, path, source + ":" + std::to_string(name.source().begin.line), depth);
    }
  }

  void take(const toml::node& node, const std::string& path, const std::string& where, int depth) {
    const auto& keys = schema.keys();
    const bool holds_keys = std::any_of(
        keys.begin(), keys.end(), [&](const Key& key) { return key.name.starts_with(path + "."); });
    const toml::table* table = node.as_table();
    if (const Key* key = schema.find(path)) {
      found.push_back({key, &node, where});
    } else if (table != nullptr && (holds_keys || !table->empty()) && depth < kMaxDepth) {
      collect(*table, path + ".", depth + 1);
    } else if (holds_keys) {
      fail(where, path + " is a table of keys: write " + path + ".key = value, or the key below [" +
                      path + "]");
    } else {
      fail_unknown(where, path, schema);
    }
  }
};

// "path:line" of a byte of the file.
std::string line_at(std::string_view text, std::size_t at, const std::string& source) {
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(at);
  return source + ":" + std::to_string(1 + std::count(text.begin(), end, '\n'));
}

void refuse_long_keys(std::string_view text, const std::string& source) {
  const auto at = internal::find_long_key(text, kMaxParts);
  if (at)
    fail(line_at(text, *at, source), "a key of more than " + std::to_string(kMaxParts) + " parts");
}

// Where toml++ 3.3 looks for blanks, it treats some non-ASCII characters as unreachable code
// (U+00A1 to U+0499 and others). A file with "café" outside of a string causes undefined behavior.
void refuse_unquoted(std::string_view text, const std::string& source) {
  const auto at = internal::find_unquoted(text);
  if (!at) return;
  const std::string character(text.substr(*at, internal::utf8_length(text, *at)));
  fail(line_at(text, *at, source),
       (character.empty() ? "a byte that is not UTF-8" : "'" + character + "'") +
           " outside of quotes: put the text in \"quotes\"");
}

// Like toml::parse(). First parses a copy without non-ASCII bytes to find syntax errors. After an
// error, toml++ 3.3 reads on, even through quoted text, to show the text that it could not parse.
// Non-ASCII characters there cause the undefined behavior described above.
toml::table parse_text(std::string_view text, const std::string& source) {
  std::string plain(text);
  const auto mark = text.starts_with("\xEF\xBB\xBF") ? 3 : 0;
  std::replace_if(
      plain.begin() + mark, plain.end(), [](unsigned char c) { return c > 0x7F; }, '?');
  toml::table table = toml::parse(plain, source);
  return plain == text ? table : toml::parse(text, source);
}

// Parses the right side of an override into `holder`. Returns null if it is not exactly one TOML
// value.
const toml::node* parse_override(const std::string& text, toml::table& holder) {
  if (internal::find_unquoted(text)) return nullptr;
  try {
    holder = parse_text("value = " + text + "\n", "");
  } catch (const toml::parse_error&) {  // the caller says what is wrong with it
    return nullptr;
  }
  return holder.size() == 1 ? holder.get("value") : nullptr;
}

}  // namespace

Schema::Schema(std::initializer_list<Key> keys) {
  for (const Key& key : keys) add(key);
}

Schema& Schema::add(Key key) {
  const std::string& name = key.name;
  const bool dots = name.empty() || name.front() == '.' || name.back() == '.' ||
                    name.find("..") != std::string::npos;
  WEFT_REQUIRE(!dots && name.find_first_not_of(std::string(kBareKey) + ".") == std::string::npos,
               "malformed configuration key '" + name + "'");
  for (const Key& other : keys_) {
    WEFT_REQUIRE(other.name != name, "configuration key " + name + " is declared twice");
    WEFT_REQUIRE(
        !other.name.starts_with(name + ".") && !name.starts_with(other.name + "."),
        "configuration keys " + name + " and " + other.name + ": a key cannot be a table as well");
  }
  WEFT_REQUIRE(fits(key.fallback, key.limits),
               "the default of configuration key " + name + " is not " + expectation(key));
  keys_.push_back(std::move(key));
  return *this;
}

Schema& Schema::add(const Schema& other) {
  for (const Key& key : other.keys_) add(key);
  return *this;
}

const Key* Schema::find(std::string_view name) const {
  const auto at =
      std::find_if(keys_.begin(), keys_.end(), [&](const Key& key) { return key.name == name; });
  return at == keys_.end() ? nullptr : &*at;
}

Config::Config(Schema schema) : schema_(std::move(schema)) {
  for (const Key& key : schema_.keys()) entries_[key.name] = {key.fallback, "default"};
}

Config Config::load(const std::string& path, Schema schema) {
  return parse(read_file(path, kMaxBytes), path, std::move(schema));
}

Config Config::parse(std::string_view text, const std::string& source, Schema schema,
                     std::size_t max_bytes) {
  Config config(std::move(schema));
  if (const auto kind = wrong_kind(text)) throw Error(Errc::kBadConfig, source + " is " + *kind);
  if (text.size() > max_bytes)
    fail(source, "the file is larger than " + std::to_string(max_bytes >> 10) + " KiB");
  refuse_unquoted(text, source);
  refuse_long_keys(text, source);
  toml::table table;
  try {
    table = parse_text(text, source);
  } catch (const toml::parse_error& error) {
    fail(source + ":" + std::to_string(error.source().begin.line), one_line(error.description()));
  }
  Collector collector{config.schema_, source};
  collector.collect(table, "", 0);
  for (const Found& one : collector.found)
    config.entries_[one.key->name] = {checked_value(*one.node, *one.key, one.where), one.where};
  return config;
}

void Config::set(std::string_view assignment, const std::string& origin) {
  if (assignment.size() > kMaxBytes) fail(origin, "the value is longer than 64 KiB");
  const std::string where = origin + " " + one_line(assignment);
  const std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos) fail(where, "expected key=value");
  const std::string name(assignment.substr(0, equals));
  const std::string text(assignment.substr(equals + 1));
  if (!internal::is_utf8(assignment)) fail(where, "the value is not UTF-8");
  const Key* key = schema_.find(name);
  if (key == nullptr) fail_unknown(where, one_line(name), schema_);

  toml::table holder;
  const toml::node* node = parse_override(text, holder);
  const bool wants_string = std::holds_alternative<std::string>(key->fallback);
  if (wants_string && (node == nullptr || !node->is_string())) {
    holder = toml::table{{"value", text}};
    node = holder.get("value");
  }
  if (node == nullptr) fail(where, expectation(*key) + " is expected");
  entries_[name] = {checked_value(*node, *key, where), origin};
}

void Config::set(std::string_view key, ConfigValue value, const std::string& origin) {
  const Key* known = schema_.find(key);
  WEFT_REQUIRE(known != nullptr, "there is no configuration key " + std::string(key));
  WEFT_REQUIRE(value.index() == known->fallback.index(),
               "configuration key " + known->name + " is of another type");
  const std::string text = internal::to_toml(value);
  if (!internal::is_utf8(text)) fail(origin, known->name + ": the value is not UTF-8");
  if (!fits(value, known->limits)) fail_value(origin, *known, text);
  entries_[known->name] = {std::move(value), origin};
}

const Config::Entry& Config::entry(std::string_view key) const {
  const auto at = entries_.find(key);
  WEFT_REQUIRE(at != entries_.end(), "there is no configuration key " + std::string(key));
  return at->second;
}

template <class T>
const T& Config::as(std::string_view key) const {
  const T* value = std::get_if<T>(&entry(key).value);
  WEFT_REQUIRE(value != nullptr, "configuration key " + std::string(key) + " is of another type");
  return *value;
}

const ConfigValue& Config::get(std::string_view key) const { return entry(key).value; }
bool Config::get_bool(std::string_view key) const { return as<bool>(key); }
std::int64_t Config::get_int(std::string_view key) const { return as<std::int64_t>(key); }
double Config::get_double(std::string_view key) const { return as<double>(key); }
const std::string& Config::get_string(std::string_view key) const { return as<std::string>(key); }
const std::vector<std::int64_t>& Config::get_ints(std::string_view key) const {
  return as<std::vector<std::int64_t>>(key);
}
const std::vector<double>& Config::get_doubles(std::string_view key) const {
  return as<std::vector<double>>(key);
}
const std::vector<std::string>& Config::get_strings(std::string_view key) const {
  return as<std::vector<std::string>>(key);
}
const std::string& Config::origin(std::string_view key) const { return entry(key).origin; }

std::vector<Config::Row> Config::describe() const {
  std::vector<Row> rows;
  for (const Key& key : schema_.keys()) {
    const Entry& found = entry(key.name);
    rows.push_back({key.name, internal::to_toml(found.value), found.origin, key.help,
                    internal::to_toml(key.fallback)});
  }
  return rows;
}

std::string Config::to_toml() const {
  // Keys outside any table must come first; after a table they would belong to it.
  std::map<std::string, std::string> sections;
  for (const Key& key : schema_.keys()) {
    const std::size_t dot = key.name.rfind('.');
    const std::string table = dot == std::string::npos ? "" : key.name.substr(0, dot);
    sections[table] +=
        last_part(key.name) + " = " + internal::to_toml(entry(key.name).value) + "\n";
  }
  std::string out;
  for (const auto& [table, lines] : sections)
    out += (out.empty() ? "" : "\n") + (table.empty() ? "" : "[" + table + "]\n") + lines;
  return out;
}

}  // namespace weft

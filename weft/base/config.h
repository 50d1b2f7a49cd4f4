// Strict configuration in TOML: every key is known beforehand, with its type, default and help;
// anything else is an error that names file, line and the nearest known key.
//
//   const Schema schema{{"train.batch", 64, "samples a rank and step", {.min = 1}},
//                       {"optim.name", "sgd", "optimizer", {.choices = {"sgd", "adamw"}}}};
//   Config config = Config::load("recipes/fashion-mnist/recipe.toml", schema);
//   config.set("train.batch=128");                      // --set
//   auto batch = config.get_int("train.batch");         // 128; config.origin("train.batch") is
//                                                       // "--set"
//
// All errors of a file or an override are Error(kBadConfig); asking for a key or a type that the
// schema lacks is kInvalidArgument. A Config is a value: copies are independent; const calls may
// run in several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace weft {

using ConfigValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>,
                                 std::vector<double>, std::vector<std::string>>;

// What a value must keep to beyond its type. `min` and `max` are allowed themselves, `below` is
// not. All hold for each element of a list.
struct Limits {
  std::optional<double> min;
  std::optional<double> max;
  std::vector<std::string> choices;
  std::optional<double> below = {};
};

// The values of another key with which a key has an effect, as model.heads with model.name = "gpt".
struct UsedBy {
  std::string key;  // Empty: the key always has an effect.
  std::vector<std::string> values = {};
};

// A known key. The default also fixes the type; a key of type double takes whole numbers too.
struct Key {
  std::string name;  // dotted: "train.batch" is batch in [train]; letters, digits, _ and -
  ConfigValue fallback;
  std::string help;  // one line
  Limits limits = {};
  UsedBy used_by = {};  // A Config does not check it.
};

class Schema {
 public:
  Schema() = default;
  Schema(std::initializer_list<Key> keys);

  // Throws kInvalidArgument for a name that is malformed, known already, or a table of another key,
  // and for a default outside its limits.
  Schema& add(Key key);
  // Every key of another schema, so that each part of a program may bring its own.
  Schema& add(const Schema& other);

  // Null when there is no such key. Valid until the next add().
  const Key* find(std::string_view name) const;
  // In the order of their adding.
  const std::vector<Key>& keys() const { return keys_; }

 private:
  std::vector<Key> keys_;
};

class Config {
 public:
  static constexpr std::size_t kMaxBytes = 64 << 10;  // Of a file, and of the value of an override.

  // One value as --dry-run shows it; `value` is TOML.
  struct Row {
    std::string key;
    std::string value;
    std::string origin;
    std::string help;
    std::string fallback;  // the key's default, as TOML
  };

  // All defaults.
  explicit Config(Schema schema);
  // The defaults, replaced by what the file says (at most 64 KiB). A file that cannot be read
  // throws what read_file() does.
  static Config load(const std::string& path, Schema schema);
  // The same for text of at most `max_bytes`; `source` stands for the path in messages and origins.
  static Config parse(std::string_view toml, const std::string& source, Schema schema,
                      std::size_t max_bytes = kMaxBytes);

  // Applies "train.batch=128". The right side is a TOML value; for a string key anything that is
  // not one is taken as it stands. `origin` says where it came from, such as the option's name. On
  // error nothing is changed.
  void set(std::string_view assignment, const std::string& origin = "--set");
  // Sets a key to a value of its type. Throws kInvalidArgument for another type.
  void set(std::string_view key, ConfigValue value, const std::string& origin);

  // Valid until the value is set again.
  const ConfigValue& get(std::string_view key) const;
  bool get_bool(std::string_view key) const;
  std::int64_t get_int(std::string_view key) const;
  double get_double(std::string_view key) const;
  const std::string& get_string(std::string_view key) const;
  const std::vector<std::int64_t>& get_ints(std::string_view key) const;
  const std::vector<double>& get_doubles(std::string_view key) const;
  const std::vector<std::string>& get_strings(std::string_view key) const;

  // "default", "path:line" or what set() was told.
  const std::string& origin(std::string_view key) const;

  // Every key in the schema's order.
  std::vector<Row> describe() const;
  // The whole as TOML that load() accepts and that gives the same values.
  std::string to_toml() const;

  const Schema& schema() const { return schema_; }

 private:
  struct Entry {
    ConfigValue value;
    std::string origin;
  };

  const Entry& entry(std::string_view key) const;
  template <class T>
  const T& as(std::string_view key) const;

  Schema schema_;
  std::map<std::string, Entry, std::less<>> entries_;
};

// The candidate with the fewest edits (insert, delete, replace, swap neighbors) from `name`,
// ignoring case; none when even that is more than a third of its letters away. For "did you mean"
// of keys, commands and options.
std::optional<std::string> nearest(std::string_view name,
                                   const std::vector<std::string>& candidates);

}  // namespace weft

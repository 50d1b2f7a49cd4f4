// A struct as a JSON object: one list of its fields serves writing and reading.
//
//   template <class Visit>
//   void each_field(SizeRequest& o, Visit&& visit) {  // in the namespace of SizeRequest
//     visit("serial", o.serial);
//     visit("ranks", o.ranks);
//   }
//   fields_to_json(SizeRequest{3, 4});            // {"ranks":4,"serial":3}
//   fields_from_json<SizeRequest>(document);
//
// A field is another such struct, an optional (null: none), a map by number, or a type that
// nlohmann-json converts. A map by number is an object, as people read it: {"0": …, "12": …}.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace weft {
namespace internal {

struct AnyField {
  template <class Value>
  void operator()(const char* name, Value& value) const;
};

template <class Value>
concept HasFields = requires(Value& value) {
  each_field(value, AnyField());
};

struct JsonFields {
  // `to` is null before.
  template <class Value>
  static void write(Value& value, nlohmann::json& to) {
    if constexpr (HasFields<Value>) {
      to = nlohmann::json::object();
      each_field(value, [&](const char* name, auto& field) { JsonFields::write(field, to[name]); });
    } else {
      to = value;
    }
  }
  template <class Value>
  static void write(std::optional<Value>& value, nlohmann::json& to) {
    if (value) JsonFields::write(*value, to);
  }
  template <class Value>
  static void write(std::map<int, Value>& values, nlohmann::json& to) {
    to = nlohmann::json::object();
    for (auto& [number, value] : values) JsonFields::write(value, to[std::to_string(number)]);
  }

  template <class Value>
  static void read(const nlohmann::json& from, Value& value) {
    if constexpr (HasFields<Value>) {
      each_field(value,
                 [&](const char* name, auto& field) { JsonFields::read(from.at(name), field); });
    } else {
      from.get_to(value);
    }
  }
  template <class Value>
  static void read(const nlohmann::json& from, std::optional<Value>& value) {
    if (!from.is_null()) JsonFields::read(from, value.emplace());
  }
  template <class Value>
  static void read(const nlohmann::json& from, std::map<int, Value>& values) {
    for (const auto& [key, value] : from.items()) JsonFields::read(value, values[std::stoi(key)]);
  }
};

}  // namespace internal

// Takes a copy, since each_field() takes a struct that it may change.
template <class Struct>
nlohmann::json fields_to_json(Struct value) {
  nlohmann::json object;
  internal::JsonFields::write(value, object);
  return object;
}

// Ignores other keys. Throws a std::exception, most often nlohmann::json::exception, if a key is
// missing or its value is not of the type of the field.
template <class Struct>
Struct fields_from_json(const nlohmann::json& object) {
  Struct value{};
  internal::JsonFields::read(object, value);
  return value;
}

}  // namespace weft

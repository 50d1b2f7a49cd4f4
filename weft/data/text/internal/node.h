// Node: a value of a JSON file and its place in the file, for error messages such as
// "x.json: model.vocab: …".
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::data::text::internal {

// A Node refers to the document, which must outlive it. A value of another type than asked for
// throws Error(kCorrupt), and so does a missing member in at().
class Node {
 public:
  Node(const nlohmann::json& value, std::string place) : value_(&value), place_(std::move(place)) {}

  // Returns a member, or nullopt if it is missing or null.
  std::optional<Node> find(const char* key) const;
  Node at(const char* key) const;
  Node at(std::size_t index) const;

  const std::string& text() const;
  std::int64_t integer(std::int64_t least, std::int64_t most) const;
  bool boolean() const;
  // The elements of an array.
  std::vector<Node> items() const;
  const nlohmann::json& object() const;
  bool is_text() const { return value_->is_string(); }

  std::string text_or(const char* key, const char* otherwise) const;
  bool boolean_or(const char* key, bool otherwise) const;
  // Throws Error(kBadConfig) for a member with another name, which could change the meaning of the
  // others.
  void allow(std::initializer_list<std::string_view> keys) const;

  const std::string& place() const { return place_; }
  [[noreturn]] void corrupt(const std::string& what) const;
  // Throws Error(kBadConfig), for a value that may be valid but that weft does not support.
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  const nlohmann::json* value_;
  std::string place_;
};

}  // namespace weft::data::text::internal

// A value of a JSON file together with its place in it, so that whatever is wrong is said in one
// line: "x.json: model.vocab: …".
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::data::text::internal {

// Refers to the document, which outlives it. What is not as asked for throws Error(kCorrupt).
class Node {
 public:
  Node(const nlohmann::json& value, std::string place) : value_(&value), place_(std::move(place)) {}

  // A member; nullopt if there is none or it is null.
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
  // Throws Error(kBadConfig) for a member of another name: it may change what the others mean.
  void allow(std::initializer_list<std::string_view> keys) const;

  const std::string& place() const { return place_; }
  [[noreturn]] void corrupt(const std::string& what) const;
  // Throws Error(kBadConfig): the file may be right, but weft does not understand this.
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  const nlohmann::json* value_;
  std::string place_;
};

}  // namespace weft::data::text::internal

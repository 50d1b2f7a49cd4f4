#include "weft/data/text/internal/node.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/data/text/internal/characters.h"

namespace weft::data::text::internal {

using nlohmann::json;

void Node::corrupt(const std::string& what) const {
  throw Error(Errc::kCorrupt, place_ + ": " + what);
}

void Node::refuse(const std::string& what) const {
  throw Error(Errc::kBadConfig, place_ + ": " + what);
}

std::optional<Node> Node::find(const char* key) const {
  const auto found = object().find(key);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return Node(*found, place_ + (place_.find(": ") == std::string::npos ? ": " : ".") + key);
}

Node Node::at(const char* key) const {
  const auto member = find(key);
  if (!member) corrupt(std::string("there is no \"") + key + "\"");
  return *member;
}

Node Node::at(std::size_t index) const {
  return Node((*value_)[index], place_ + "[" + std::to_string(index) + "]");
}

const std::string& Node::text() const {
  if (!value_->is_string()) corrupt("expected a string");
  return value_->get_ref<const std::string&>();
}

std::int64_t Node::integer(std::int64_t least, std::int64_t most) const {
  const bool large = value_->is_number_unsigned() &&
                     value_->get<std::uint64_t>() > static_cast<std::uint64_t>(most);
  if (!value_->is_number_integer() || large || value_->get<std::int64_t>() < least ||
      value_->get<std::int64_t>() > most) {
    corrupt("expected a whole number from " + std::to_string(least) + " to " +
            std::to_string(most));
  }
  return value_->get<std::int64_t>();
}

bool Node::boolean() const {
  if (!value_->is_boolean()) corrupt("expected true or false");
  return value_->get<bool>();
}

std::vector<Node> Node::items() const {
  if (!value_->is_array()) corrupt("expected a list");
  std::vector<Node> nodes;
  for (std::size_t i = 0; i < value_->size(); ++i) nodes.push_back(at(i));
  return nodes;
}

const json& Node::object() const {
  if (!value_->is_object()) corrupt("expected an object");
  return *value_;
}

std::string Node::text_or(const char* key, const char* otherwise) const {
  const auto member = find(key);
  return member ? member->text() : otherwise;
}

bool Node::boolean_or(const char* key, bool otherwise) const {
  const auto member = find(key);
  return member ? member->boolean() : otherwise;
}

void Node::allow(std::initializer_list<std::string_view> keys) const {
  for (const auto& [key, value] : object().items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      refuse(shown(key) + " is not supported");
  }
}

}  // namespace weft::data::text::internal

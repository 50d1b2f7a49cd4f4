#include "bench/suite/internal/answer.h"

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/json/json.h"
#include "weft/base/log.h"

namespace weft::cli::bench_internal {
namespace {

// Adds a value, with all its members, under this dotted name.
void add(const nlohmann::json& value, const std::string& key, Message& message) {
  if (value.is_object()) {
    for (const auto& [name, member] : value.items())
      add(member, key.empty() ? name : key + "." + name, message);
  } else if (value.is_array()) {
    for (const auto& item : value) add(item, key, message);
  } else if (value.is_string()) {
    message.texts[key] = value.get<std::string>();
  } else if (value.is_boolean()) {
    message.texts[key] = value.get<bool>() ? "true" : "false";
  } else if (value.is_number()) {
    message.numbers[key].push_back(value.get<double>());
  }
}

}  // namespace

double Message::number(const std::string& key, double missing) const {
  const auto found = numbers.find(key);
  return found == numbers.end() || found->second.empty() ? missing : found->second.front();
}

std::string Message::text(const std::string& key) const {
  const auto found = texts.find(key);
  return found == texts.end() ? "" : found->second;
}

Message parse_message(const std::string& line) {
  const std::string name = "not an answer: " + line.substr(0, 200);
  const nlohmann::json document = parse_json(line, name, {.depth = 8});
  if (!document.is_object()) throw Error(Errc::kCorrupt, name + ": expected an object");
  Message message;
  add(document, "", message);
  return message;
}

std::string json_array(const std::vector<double>& values) {
  std::string text = "[";
  for (const double value : values) text += (text.size() == 1 ? "" : ",") + json_number(value);
  return text + "]";
}

}  // namespace weft::cli::bench_internal

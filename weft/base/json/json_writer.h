// Writes JSON at the end of a string, value by value: for lines and files that a run writes often.
// Whatever is written once is an nlohmann::ordered_json, as text by json_line() (json.h).
//
//   std::string line;
//   JsonWriter(line).begin_object().field("step", 7).field("loss", 0.5).end_object();
//   // {"step":7,"loss":0.5}
//
// The caller closes what it opens, and writes a key before each value of an object.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace weft {

// Text as a JSON string with its quotes; bytes that are not UTF-8 become U+FFFD.
std::string json_quote(std::string_view text);
// The shortest text that reads back as the same number; NaN and infinities, which JSON lacks,
// become null.
std::string json_number(double value);

enum class JsonStyle { kCompact, kSpaced };  // {"a":1,"b":2} or {"a": 1, "b": 2}

class JsonWriter {
 public:
  // `text` must outlive the writer.
  explicit JsonWriter(std::string& text, JsonStyle style = JsonStyle::kCompact)
      : text_(text), style_(style) {}

  JsonWriter& begin_object() { return begin('{'); }
  JsonWriter& end_object() { return end('}'); }
  JsonWriter& begin_array() { return begin('['); }
  JsonWriter& end_array() { return end(']'); }
  JsonWriter& key(std::string_view name);

  // Strings and numbers as json_quote() and json_number() give them.
  JsonWriter& value(std::string_view text) { return raw(json_quote(text)); }
  JsonWriter& value(const char* text) { return raw(json_quote(text)); }
  JsonWriter& value(bool truth) { return raw(truth ? "true" : "false"); }
  JsonWriter& value(double number) { return raw(json_number(number)); }
  JsonWriter& value(std::integral auto number) { return raw(std::to_string(number)); }
  // Text that is JSON already.
  JsonWriter& raw(std::string_view json);

  template <class Value>
  JsonWriter& field(std::string_view name, const Value& content) {
    return key(name).value(content);
  }

 private:
  JsonWriter& begin(char bracket);
  JsonWriter& end(char bracket);

  std::string& text_;
  JsonStyle style_;
  bool follows_ = false;  // A value stands before the next one in the same object or array.
};

}  // namespace weft

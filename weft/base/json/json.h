// Reads JSON that others have written: strictly, with limits for hostile input and one error a
// mistake. Writes a document on a line.
//
// The parser is nlohmann-json. A source that uses the document includes <nlohmann/json.hpp> itself.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace weft {

struct JsonLimits {
  int depth = 32;  // Most objects and arrays inside each other.
  // Refuse an object that has a key twice. Otherwise its last value counts.
  bool unique_keys = false;
};

// Gives the document. `name` stands for the file in messages. Throws Error(kCorrupt), in one line,
// for text that is not JSON, not UTF-8 or beyond the limits. The document takes up to 25 times the
// memory of the text.
nlohmann::json parse_json(std::string_view text, const std::string& name,
                          const JsonLimits& limits = {});

// The document on one line, without a newline: {"a": 1, "b": [2, 3]}. Strings and numbers as
// json_quote() and json_number() give them (json_writer.h).
std::string json_line(const nlohmann::ordered_json& document);

}  // namespace weft

// The JSON objects that the harness and its participants exchange, one per line (bench/README.md).
#pragma once

#include <map>
#include <string>
#include <vector>

namespace weft::cli::bench_internal {

// A flattened object: {"a":{"b":[1,2]},"c":"x"} has numbers["a.b"] = {1, 2} and texts["c"] = "x".
// true and false are texts; nulls are dropped.
struct Message {
  std::map<std::string, std::vector<double>> numbers;
  std::map<std::string, std::string> texts;

  // The value, or `missing` if there is none.
  double number(const std::string& key, double missing = 0) const;
  std::string text(const std::string& key) const;
  bool is_true(const std::string& key) const { return text(key) == "true"; }
};

// Throws Error(kCorrupt), showing the line, if it is not a JSON object of strings, numbers, true,
// false, null, and arrays and objects of these.
Message parse_message(const std::string& line);

// "[1.5,2]".
std::string json_array(const std::vector<double>& values);

}  // namespace weft::cli::bench_internal

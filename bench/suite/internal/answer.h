// The JSON objects that the harness and its participants exchange, one a line (bench/README.md).
#pragma once

#include <map>
#include <string>
#include <vector>

namespace weft::cli::bench_internal {

// An object laid flat: {"a":{"b":[1,2]},"c":"x"} has numbers["a.b"] = {1, 2} and texts["c"] = "x".
// true and false are texts; nulls are dropped.
struct Message {
  std::map<std::string, std::vector<double>> numbers;
  std::map<std::string, std::string> texts;

  // The value, or `missing` where there is none.
  double number(const std::string& key, double missing = 0) const;
  std::string text(const std::string& key) const;
  bool is_true(const std::string& key) const { return text(key) == "true"; }
};

// Throws Error(kCorrupt), showing the line, where it is no JSON object of strings, numbers, true,
// false, null, arrays and objects of them.
Message parse_message(const std::string& line);

// "[1.5,2]".
std::string json_array(const std::vector<double>& values);

}  // namespace weft::cli::bench_internal

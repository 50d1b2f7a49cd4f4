// Numbers, lists and times in messages, and the words of a text.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace weft {

// counted(1, "rank") is "1 rank", counted(3, "rank") "3 ranks". `many`: the plural, if it is not
// `one` and an s.
std::string counted(std::int64_t number, std::string_view one, std::string_view many = {});
template <std::integral Number>
std::string counted(Number number, std::string_view one, std::string_view many = {}) {
  return counted(static_cast<std::int64_t>(number), one, many);
}

// The words, with `between` between two of them: "dp, tp, pp".
std::string joined(const std::vector<std::string>& words, std::string_view between = ", ");
// The same of other words, or of integers: "1, 2, 4".
template <class Words>
std::string joined(const Words& words, std::string_view between = ", ") {
  std::vector<std::string> texts;
  for (const auto& word : words) {
    if constexpr (std::integral<std::remove_cvref_t<decltype(word)>>) {
      texts.push_back(std::to_string(word));
    } else {
      texts.emplace_back(word);
    }
  }
  return joined(texts, between);
}

// Number of characters of a text in UTF-8. A terminal draws most of them one column wide.
std::size_t num_characters(std::string_view text);

// The parts between separators, without empty ones.
std::vector<std::string> split(std::string_view text, char separator);

// The text with `instead` for each control character. Text from files, peers and the environment
// must not break a line or control a terminal.
std::string one_line(std::string_view text, char instead = ' ');

// `when` as the local time: "2026-01-31 23:59:59", or in another format of strftime(), whose result
// has at most 63 bytes.
std::string local_time(std::chrono::system_clock::time_point when,
                       const char* format = "%Y-%m-%d %H:%M:%S");

}  // namespace weft

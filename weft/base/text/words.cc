#include "weft/base/text/words.h"

#include <algorithm>
#include <ctime>

namespace weft {

std::string counted(std::int64_t number, std::string_view one, std::string_view many) {
  std::string text = std::to_string(number) + " ";
  text += number == 1 || many.empty() ? one : many;
  if (number != 1 && many.empty()) text += 's';
  return text;
}

std::string joined(const std::vector<std::string>& words, std::string_view between) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += between;
    text += words[i];
  }
  return text;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t from = 0; from <= text.size();) {
    const auto end = std::min(text.find(separator, from), text.size());
    if (end > from) parts.emplace_back(text.substr(from, end - from));
    from = end + 1;
  }
  return parts;
}

std::size_t num_characters(std::string_view text) {
  // All bytes of a character but its first one begin with the bits 10.
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string one_line(std::string_view text, char instead) {
  std::string line(text);
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }, instead);
  return line;
}

std::string local_time(std::chrono::system_clock::time_point when, const char* format) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(when);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  char text[64];
  return {text, std::strftime(text, sizeof text, format, &parts)};
}

}  // namespace weft

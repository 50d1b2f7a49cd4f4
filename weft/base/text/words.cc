#include "weft/base/text/words.h"

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

}  // namespace weft

#include "weft/rank_link/messages.h"

#include <sstream>

#include "weft/base/text/words.h"

namespace weft::rank_link {
namespace {

// False if something other than whole numbers and blanks is in the text.
bool read_numbers(const std::string& text, std::vector<int>& numbers) {
  std::istringstream words(text);
  numbers.clear();
  for (std::string word; words >> word;) {
    NumberValue<int> number;
    if (!number.parse(word)) return false;
    numbers.push_back(number.value);
  }
  return true;
}

}  // namespace

std::string NumbersValue::text() const { return joined(values, " "); }
bool NumbersValue::parse(const std::string& text) { return read_numbers(text, values); }

std::string RanksWanted::text() const {
  return std::to_string(number) + (newcomers.empty() ? "" : " ") + joined(newcomers, " ");
}

bool RanksWanted::parse(const std::string& text) {
  if (!read_numbers(text, newcomers) || newcomers.empty()) return false;
  number = newcomers.front();
  newcomers.erase(newcomers.begin());
  return true;
}

}  // namespace weft::rank_link

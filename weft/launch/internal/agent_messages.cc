#include "weft/launch/internal/agent_messages.h"

namespace weft::launch::internal {
namespace {

// The text up to the first blank, and the rest.
std::pair<std::string, std::string> first_and_rest(const std::string& text) {
  const std::size_t blank = text.find(' ');
  return {text.substr(0, blank), blank == std::string::npos ? "" : text.substr(blank + 1)};
}

}  // namespace

bool NodeJoined::parse(const std::string& text) {
  const auto [first, second] = first_and_rest(text);
  rank_link::NumberValue<int> number;
  rank_link::NumberValue<std::uint64_t> granted;
  if (!number.parse(first) || !granted.parse(second)) return false;
  node = number.value;
  lease = granted.value;
  return true;
}

bool Over::parse(const std::string& text) {
  const auto [first, second] = first_and_rest(text);
  rank_link::NumberValue<int> number;
  if (!number.parse(first)) return false;
  code = number.value;
  why = second;
  return true;
}

}  // namespace weft::launch::internal

#include "weft/agent/usable_ranks.h"

#include <algorithm>
#include <bit>
#include <sstream>

namespace weft::agent {

int UsableRanks::most(int ranks) const {
  const int parts = std::max(0, ranks) / multiple;
  if (shards == 0 || parts == 0) return parts * multiple;
  const auto limit = static_cast<unsigned>(std::min(parts, shards));
  return static_cast<int>(std::bit_floor(limit)) * multiple;
}

int UsableRanks::least(int ranks) const {
  const int parts = (std::max(1, ranks) + multiple - 1) / multiple;
  if (shards == 0) return parts * multiple;
  return parts > shards ? 0
                        : static_cast<int>(std::bit_ceil(static_cast<unsigned>(parts))) * multiple;
}

std::string UsableRanks::describe() const {
  if (shards == 0) return "multiples of " + std::to_string(multiple);
  std::string text;
  for (int parts = 1; parts <= shards; parts *= 2) {
    const char* const before = parts == 1 ? "" : parts == shards ? " or " : ", ";
    text += before + std::to_string(parts * multiple);
  }
  return text + " ranks";
}

std::string to_text(const UsableRanks& usable) {
  const std::string text = std::to_string(usable.multiple);
  return usable.shards == 0 ? text : text + " " + std::to_string(usable.shards);
}

UsableRanks usable_ranks_of(const std::string& text) {
  UsableRanks usable;
  std::istringstream in(text);
  in >> usable.multiple;
  if (!in || usable.multiple < 1) return {};
  if (!(in >> usable.shards) || usable.shards < 0) usable.shards = 0;
  usable.shards = static_cast<int>(std::bit_floor(static_cast<unsigned>(usable.shards)));
  return usable;
}

}  // namespace weft::agent

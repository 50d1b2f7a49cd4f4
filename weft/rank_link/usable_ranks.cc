#include "weft/rank_link/usable_ranks.h"

#include <algorithm>
#include <bit>
#include <sstream>

namespace weft::rank_link {

int UsableRanks::most(int ranks) const {
  int parts = std::max(0, ranks) / multiple;
  if (replicas > 0) parts = std::min(parts, replicas);
  if (shards == 0 || parts == 0) return parts * multiple;
  const auto limit = static_cast<unsigned>(std::min(parts, shards));
  return static_cast<int>(std::bit_floor(limit)) * multiple;
}

int UsableRanks::least(int ranks) const {
  int parts = (std::max(1, ranks) + multiple - 1) / multiple;
  if (shards > 0) parts = static_cast<int>(std::bit_ceil(static_cast<unsigned>(parts)));
  const bool too_many = (shards > 0 && parts > shards) || (replicas > 0 && parts > replicas);
  return too_many ? 0 : parts * multiple;
}

std::string UsableRanks::describe() const {
  if (shards == 0) {
    return "multiples of " + std::to_string(multiple) +
           (replicas > 0 ? " up to " + std::to_string(replicas * multiple) : "");
  }
  std::string text;
  const int last = most(shards * multiple) / multiple;
  for (int parts = 1; parts <= last; parts *= 2) {
    const char* const before = parts == 1 ? "" : parts == last ? " or " : ", ";
    text += before + std::to_string(parts * multiple);
  }
  return text + " ranks";
}

std::string to_text(const UsableRanks& usable) {
  std::string text = std::to_string(usable.multiple);
  if (usable.shards > 0 || usable.replicas > 0) text += " " + std::to_string(usable.shards);
  if (usable.replicas > 0) text += " " + std::to_string(usable.replicas);
  return text;
}

UsableRanks usable_ranks_of(const std::string& text) {
  UsableRanks usable;
  std::istringstream in(text);
  in >> usable.multiple;
  if (!in || usable.multiple < 1) return {};
  if (!(in >> usable.shards) || usable.shards < 0) usable.shards = 0;
  if (!(in >> usable.replicas) || usable.replicas < 0) usable.replicas = 0;
  usable.shards = static_cast<int>(std::bit_floor(static_cast<unsigned>(usable.shards)));
  return usable;
}

}  // namespace weft::rank_link

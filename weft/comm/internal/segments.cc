#include "weft/comm/internal/segments.h"

#include <algorithm>

namespace weft::comm::internal {
namespace {

// Part i of n: [cut(i), cut(i + 1)).
struct Cuts {
  std::int64_t count, line;
  std::int64_t at(int i, int n) const {
    const std::int64_t lines = (count + line - 1) / line;
    return std::min(count, lines * i / n * line);
  }
  // Returns the part that contains `place`.
  int owner(std::int64_t place, int n) const {
    int low = 0, high = n - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (at(middle, n) <= place) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
};

}  // namespace

std::vector<Segment> segments_of(const HostMap& map, std::int64_t count, std::size_t element) {
  const Cuts cuts{count, static_cast<std::int64_t>(64 / element)};
  const std::int64_t begin = cuts.at(map.local, map.local_world()),
                     end = cuts.at(map.local + 1, map.local_world());
  std::vector<std::int64_t> bounds{begin, end};
  for (int host = 0; host < map.num_hosts(); ++host) {
    const int size = map.size_of(host);
    for (int i = cuts.owner(begin, size); i < size && cuts.at(i, size) < end; ++i)
      bounds.push_back(std::max(begin, cuts.at(i, size)));
  }
  std::sort(bounds.begin(), bounds.end());
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  std::vector<Segment> segments;
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    Segment segment{bounds[i], bounds[i + 1], {}};
    for (int host = 0; host < map.num_hosts(); ++host) {
      const int owner = cuts.owner(segment.begin, map.size_of(host));
      segment.ranks.push_back(
          map.hosts[static_cast<std::size_t>(host)][static_cast<std::size_t>(owner)]);
    }
    segments.push_back(std::move(segment));
  }
  return segments;
}

}  // namespace weft::comm::internal

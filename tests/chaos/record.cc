#include "tests/chaos/record.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace weft::chaos {

std::vector<GroupStep> finished_steps(const std::vector<RankStep>& steps) {
  std::map<std::tuple<int, std::int64_t, std::int64_t>, int> ranks_done;
  std::vector<GroupStep> finished;
  for (const RankStep& one : steps) {
    if (one.ready) continue;
    if (++ranks_done[{one.job, one.group, one.step}] == one.ranks)
      finished.push_back({one.at_s, one.job, one.group, one.step, one.epoch, one.position});
  }
  std::stable_sort(finished.begin(), finished.end(),
                   [](const GroupStep& a, const GroupStep& b) { return a.at_s < b.at_s; });
  return finished;
}

}  // namespace weft::chaos

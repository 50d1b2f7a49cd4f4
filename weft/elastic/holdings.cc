// Which state to continue from. A state is known by its step and the epoch of the group that copied
// it. It is whole if each of the ranks of that group has a part that some rank can read. The newest
// whole one counts: by step first, since an older step repeats work, then by epoch.
//
// A rank may have copied a step that another one did not finish, because that one was lost in
// between. Then that step lacks a part, and the state before it is whole: each rank keeps two
// copies.
//
// All ranks call choose() with the same list, and must come to the same answer without a message.
// So the order of a map decides, and of several holders of a part the lowest rank.
#include "weft/elastic/holdings.h"

#include <algorithm>
#include <cmath>
#include <locale>
#include <map>
#include <sstream>
#include <utility>

#include "weft/base/error.h"

namespace weft::elastic {

std::string to_text(const std::vector<Holding>& holdings) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  for (const Holding& one : holdings) {
    text << one.epoch << ' ' << one.world << ' ' << one.owner << ' ' << one.step << ' ' << one.bytes
         << '\n';
  }
  return text.str();
}

std::vector<Holding> holdings_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<Holding> holdings;
  const auto require = [](bool good) {
    if (!good) throw Error(Errc::kCorrupt, "another rank sent an unreadable list of copies");
  };
  for (Holding one; in >> one.epoch;) {
    const bool good = static_cast<bool>(in >> one.world >> one.owner >> one.step >> one.bytes) &&
                      one.world > 0 && one.owner >= 0 && one.owner < one.world && one.step >= 0 &&
                      one.bytes >= 0;
    require(good);
    holdings.push_back(one);
  }
  require(in.eof());
  return holdings;
}

std::optional<Choice> choose(const std::vector<std::vector<Holding>>& by_rank,
                             std::string* missing) {
  std::map<std::pair<std::int64_t, std::uint32_t>, Choice> states;  // by step and epoch
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (const Holding& one : by_rank[rank]) {
      Choice& state = states[{one.step, one.epoch}];
      state.epoch = one.epoch;
      state.step = one.step;
      state.holders.resize(static_cast<std::size_t>(one.world), -1);
      state.bytes.resize(static_cast<std::size_t>(one.world), 0);
      const auto owner = static_cast<std::size_t>(one.owner);
      // Ranks are visited in order, so the first holder is the lowest rank.
      if (owner >= state.holders.size() || state.holders[owner] >= 0) continue;
      state.holders[owner] = static_cast<int>(rank);
      state.bytes[owner] = one.bytes;
    }
  }
  for (auto newest = states.rbegin(); newest != states.rend(); ++newest) {
    const auto& holders = newest->second.holders;
    if (std::find(holders.begin(), holders.end(), -1) == holders.end()) return newest->second;
  }
  if (missing != nullptr && !states.empty()) {
    const Choice& newest = states.rbegin()->second;
    std::string ranks;
    for (std::size_t owner = 0; owner < newest.holders.size(); ++owner) {
      if (newest.holders[owner] < 0) ranks += (ranks.empty() ? "" : ", ") + std::to_string(owner);
    }
    *missing = "the parts of ranks " + ranks + " of step " + std::to_string(newest.step);
  }
  return std::nullopt;
}

std::vector<int> copy_places(const std::vector<std::vector<int>>& hosts) {
  if (hosts.size() < 2) return {};
  std::size_t world = 0;
  for (const auto& ranks : hosts) world += ranks.size();
  std::vector<int> places(world, -1);
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    const auto& next = hosts[(host + 1) % hosts.size()];
    for (std::size_t local = 0; local < hosts[host].size(); ++local)
      places[static_cast<std::size_t>(hosts[host][local])] = next[local % next.size()];
  }
  return places;
}

void CopyInterval::taken(std::int64_t step, double copy_s, double step_s) {
  const double most = std::min(2.0 * static_cast<double>(steps_), 1e6);
  if (fixed_ > 0) {
    steps_ = fixed_;
  } else if (step_s > 0) {
    steps_ =
        static_cast<std::int64_t>(std::clamp(std::ceil(copy_s / (kShare * step_s)), 1.0, most));
  } else {
    steps_ = 1;  // unknown times: the next step is measured
  }
  next_ = step + steps_;
}

}  // namespace weft::elastic

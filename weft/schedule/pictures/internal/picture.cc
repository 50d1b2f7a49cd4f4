#include "weft/schedule/pictures/internal/picture.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>

#include "weft/base/error.h"
#include "weft/base/text/words.h"
#include "weft/schedule/internal/symbolic.h"
#include "weft/schedule/internal/writer.h"
#include "weft/schedule/pictures/pictures.h"

namespace weft::schedule::internal {
namespace {

bool is_gather(Collective c) { return c == Collective::kAllGather || c == Collective::kGather; }
bool has_blocks(Collective c) {
  return is_gather(c) || c == Collective::kScatter || c == Collective::kAllToAll ||
         c == Collective::kReduceScatter;
}

// Count that gives equal shares to groups of all sizes. If it is too large to be drawn, one element
// per rank.
std::int64_t divisible_count(const Topology& topology) {
  constexpr std::int64_t kMost = 120;
  std::int64_t shares = 1;
  for (int l = 0; l < topology.num_levels(); ++l) {
    std::int64_t level = 1;
    for (int g = 0; g < topology.num_groups(l); ++g)
      level = std::lcm(level, static_cast<std::int64_t>(topology.children(l, g).size()));
    shares *= level;
    if (shares > kMost) return topology.world();
  }
  return shares;
}

// Count to draw: one element per chunk. A pipelined array has a few blocks, to show that they
// follow each other.
std::int64_t telling_count(const Request& q) {
  if (q.count > 0 || q.collective == Collective::kBarrier) return q.count;
  if (has_blocks(q.collective)) return 1;
  if (q.algorithm == Algorithm::kChain || q.chunk > 0)
    return 4 * (q.chunk > 0 ? q.chunk : kShortestBlock);
  if (q.algorithm == Algorithm::kTorus) return 2 * q.world;
  return q.algorithm == Algorithm::kHierarchical && q.topology ? divisible_count(*q.topology)
                                                               : q.world;
}

// A part lies between two neighboring places where a block or a message begins or ends.
class Parts {
 public:
  Parts(const std::vector<Transfer>& transfers, const Request& q)
      : by_rank_(is_gather(q.collective)) {
    for (int block = 0; block <= (has_blocks(q.collective) ? q.world : 1); ++block)
      edges_.insert(block * q.count);
    for (const Transfer& transfer : transfers) {
      for (const Run& run : transfer.runs) {
        edges_.insert(run.source);
        edges_.insert(run.source + run.end - run.begin);
      }
    }
  }

  int count() const { return std::max(1, static_cast<int>(edges_.size()) - 1); }
  std::vector<int> of(const Transfer& transfer) const {
    std::set<int> parts;
    for (const Run& run : transfer.runs) {
      if (by_rank_) {
        for (std::size_t rank = 0; rank < run.from.size(); ++rank) {
          if (run.from.test(rank)) parts.insert(static_cast<int>(rank));
        }
        continue;
      }
      const auto first = edges_.find(run.source);
      const auto last = edges_.find(run.source + run.end - run.begin);
      const int begin = static_cast<int>(std::distance(edges_.begin(), first));
      for (int p = 0; p < std::distance(first, last); ++p) parts.insert(begin + p);
    }
    return {parts.begin(), parts.end()};
  }

 private:
  bool by_rank_;
  std::set<std::int64_t> edges_;
};

// {0, 1, 2, 5} is "0–2,5".
std::string label_of(const std::vector<int>& parts, int all) {
  if (static_cast<int>(parts.size()) == all) return "all";
  std::string label;
  for (std::size_t i = 0, j = 0; i < parts.size(); i = j) {
    while (j < parts.size() && parts[j] == parts[i] + static_cast<int>(j - i)) ++j;
    if (!label.empty()) label += ",";
    label += std::to_string(parts[i]);
    if (j - i > 1) label += "–" + std::to_string(parts[j - 1]);
  }
  return label;
}

// Gives each arrow the first free slot, starting from its index among the sender's and the
// receiver's messages.
void set_slots(std::vector<Arrow>& arrows) {
  std::set<std::tuple<int, int, int>> leaving;  // round, rank, slot
  std::set<std::tuple<int, int, int>> arriving;
  std::stable_sort(arrows.begin(), arrows.end(),
                   [](const Arrow& a, const Arrow& b) { return a.slot < b.slot; });
  for (Arrow& arrow : arrows) {
    const auto taken = [&] {
      return arriving.contains({arrow.round, arrow.target, arrow.slot}) ||
             (!arrow.reads &&
              leaving.contains({arrow.round, arrow.source,
                                arrow.slot}));  // many may read the same place at once
    };
    while (taken()) ++arrow.slot;
    leaving.insert({arrow.round, arrow.source, arrow.slot});
    arriving.insert({arrow.round, arrow.target, arrow.slot});
  }
  std::stable_sort(arrows.begin(), arrows.end(),
                   [](const Arrow& a, const Arrow& b) { return a.round < b.round; });
}

std::string with(char separator, const char* name) {
  std::string text = name;
  std::replace(text.begin(), text.end(), '_', separator);
  return text;
}

}  // namespace

Picture picture_of(const Request& request) {
  WEFT_REQUIRE(request.world <= kMaxProvedWorld, "a world of " + std::to_string(request.world) +
                                                     " ranks is more than can be shown, " +
                                                     std::to_string(kMaxProvedWorld));
  Picture picture{.request = request,
                  .cost = {},
                  .arrows = {},
                  .meetings = {},
                  .parts = 1,
                  .traffic = {},
                  .what = ""};
  Request& q = picture.request;
  q.count = telling_count(q);
  picture.cost = cost(q);
  if (q.topology && q.topology->num_levels() > 1) picture.traffic = traffic(q);
  std::vector<Schedule> schedules;
  for (q.rank = 0; q.rank < q.world; ++q.rank) schedules.push_back(make(q));
  for (const Step& step : schedules[0].steps) {
    if (step.action == Action::kMeet) picture.meetings.push_back(step.round);
  }

  std::vector<Transfer> transfers;
  Symbolic symbolic(schedules, /*same_array=*/false);
  symbolic.observe([&](const Transfer& transfer) { transfers.push_back(transfer); });
  symbolic.run();
  const Parts parts(transfers, q);
  picture.parts = has_blocks(q.collective) ? q.world : parts.count();
  for (const Transfer& t : transfers) {
    const std::vector<int> moved = parts.of(t);
    const bool reads = !picture.meetings.empty();
    const int level = q.topology ? q.topology->level_of(t.source, t.target) : 0;
    picture.arrows.push_back({t.round, t.source, t.target, t.reduces, reads, level,
                              std::max(t.leaves, t.reaches), label_of(moved, picture.parts),
                              moved.empty() ? 0 : moved.front()});
    if (moved.empty()) picture.arrows.back().label = "";
  }
  set_slots(picture.arrows);
  if (is_gather(q.collective))
    picture.what = "the block of rank";
  else if (has_blocks(q.collective))
    picture.what = "the block for rank";
  else if (q.collective != Collective::kBarrier)
    picture.what = "part";
  return picture;
}

std::string heading(const Picture& picture) {
  const Request& q = picture.request;
  std::string text =
      with(q.algorithm == Algorithm::kHalvingDoubling ? '-' : ' ', to_string(q.algorithm)) + " " +
      with('-', to_string(q.collective));
  text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

std::string summary(const Picture& picture) {
  const Request& q = picture.request;
  const bool reads = !picture.meetings.empty();
  const bool shaped = q.topology && (q.topology->num_levels() > 1 || q.topology->grid());
  const std::string text = counted(q.world, "rank") +
                           (shaped ? " (" + q.topology->describe() + "), " : ", ") +
                           counted(picture.cost.rounds, reads ? "meeting" : "round");
  if (q.collective == Collective::kBarrier) return text;
  return text + "; the busiest rank " + (reads ? "reads " : "sends ") +
         counted(picture.cost.sent, "element") + " (count is " + std::to_string(q.count) + ")";
}

std::string levels_line(const Picture& picture) {
  std::string text;
  for (std::size_t l = 0; l < picture.traffic.size(); ++l) {
    const Traffic& traffic = picture.traffic[l];
    text += (l == 0 ? "" : "; ") + link_name(*picture.request.topology, static_cast<int>(l)) + " " +
            std::to_string(traffic.total);
    text +=
        (l == 0 ? " elements, " : ", ") + std::to_string(traffic.busiest) + " out of the busiest";
    if (l + 1 == picture.traffic.size()) text += " rank";
  }
  return text;
}

}  // namespace weft::schedule::internal

// The bulk-synchronous model: the time of a collective is the sum over its rounds of the longest
// time that any rank needs for the round.
#include <algorithm>
#include <vector>

#include "weft/plan/collectives/choice.h"

namespace weft::plan {
namespace {

using schedule::Action;
using schedule::Step;

// What one rank does in one round.
struct Work {
  double sent = 0, received = 0, reduced = 0, read = 0, copied = 0;
  int sends = 0, recvs = 0, meetings = 0;
};

void add(Work& work, const Step& step, double bytes) {
  switch (step.action) {
    case Action::kSend:
      work.sent += bytes;
      ++work.sends;
      break;
    case Action::kRecvReduce: work.reduced += bytes; [[fallthrough]];
    case Action::kRecv:
      work.received += bytes;
      ++work.recvs;
      break;
    case Action::kReadReduce:
    case Action::kReduce: work.reduced += bytes; break;
    case Action::kRead: work.read += bytes; break;
    case Action::kCopy:
      work.copied += step.round > 0 ? bytes : 0;
      break;  // round 0 copies the input into place; usually it is there already
    case Action::kMeet: ++work.meetings; break;
  }
}

double seconds(const Work& work, int world, const TransportCost& cost) {
  double time =
      work.meetings * world * cost.meeting + cost.reduce.at(work.reduced) * (work.reduced > 0);
  if (work.read > 0) time += cost.message.at(work.read);
  if (work.copied > 0) time += cost.copy.at(work.copied);
  const int messages = std::max(work.sends, work.recvs);
  if (messages == 0) return time;
  time += cost.message.at(std::max(work.sent, work.received)) + cost.overhead * (messages - 1);
  const double other = std::min(work.sent, work.received);
  return other > 0 ? time + cost.duplex * (cost.message.at(other) - cost.message.at(0)) : time;
}

// All ranks of a small world. In a large world the first ranks (the root of a tree and ranks near
// it), the last rank, and some between.
std::vector<int> ranks_to_look_at(int world) {
  constexpr int kAll = 64, kSome = 16;
  std::vector<int> ranks;
  for (int i = 0; i < std::min(world, world <= kAll ? kAll : kSome); ++i) {
    ranks.push_back(world <= kAll || i < kSome / 2
                        ? i
                        : static_cast<int>(std::int64_t{world - 1} * i / (kSome - 1)));
  }
  return ranks;
}

}  // namespace

double model(const schedule::Request& request, std::size_t element, const TransportCost& cost) {
  std::vector<double> longest;
  for (const int rank : ranks_to_look_at(request.world)) {
    schedule::Request own = request;
    own.rank = rank;
    const schedule::Schedule schedule = schedule::make(own);
    const auto& steps = schedule.steps;
    for (std::size_t i = 0; i < steps.size();) {
      const auto round = static_cast<std::size_t>(steps[i].round);
      Work work;
      for (; i < steps.size() && static_cast<std::size_t>(steps[i].round) == round; ++i) {
        add(work, steps[i], static_cast<double>(steps[i].count) * static_cast<double>(element));
      }
      if (longest.size() <= round) longest.resize(round + 1);
      longest[round] = std::max(longest[round], seconds(work, request.world, cost));
    }
  }
  double total = 0;
  for (const double time : longest) total += time;
  return total;
}

}  // namespace weft::plan

// Counts what schedules move, from the schedules themselves.
#include <algorithm>

#include "weft/schedule/internal/algorithms.h"
#include "weft/schedule/schedule.h"

namespace weft::schedule {
namespace {

// Calls sent(rank, step) for every send and every read, rank by rank.
template <typename Sent>
void for_messages(const Request& request, Sent&& sent) {
  Request own = request;
  for (own.rank = 0; own.rank < own.world; ++own.rank) {
    for (const Step& step : make(own).steps) {
      const bool reads = step.action == Action::kRead || step.action == Action::kReadReduce;
      if (step.action == Action::kSend || reads) sent(own.rank, step);
    }
  }
}

}  // namespace

std::vector<Traffic> traffic(const Request& request) {
  const Topology flat = Topology::flat(request.topology ? 1 : request.world);
  const Topology& topology = request.topology ? *request.topology : flat;
  const int levels = topology.num_levels();
  std::vector<Traffic> result(static_cast<std::size_t>(levels));
  std::vector<std::vector<std::int64_t>> out;  // by level and part
  for (int l = 0; l < levels; ++l)
    out.emplace_back(
        static_cast<std::size_t>(l + 1 < levels ? topology.num_groups(l + 1) : request.world));
  for_messages(request, [&](int rank, const Step& step) {
    const bool sends = step.action == Action::kSend;
    const int source = sends ? rank : step.peer;
    const int level = topology.level_of(rank, step.peer);
    const int part = level + 1 < levels ? topology.group_of(level + 1, source) : source;
    out[static_cast<std::size_t>(level)][static_cast<std::size_t>(part)] += step.count;
  });
  for (std::size_t l = 0; l < out.size(); ++l) {
    for (const std::int64_t elements : out[l]) {
      result[l].total += elements;
      result[l].busiest = std::max(result[l].busiest, elements);
    }
  }
  return result;
}

Cost internal::counted_cost(const Request& request) {
  Cost cost;
  std::vector<std::int64_t> sent(static_cast<std::size_t>(request.world));
  for_messages(request, [&](int rank, const Step& step) {
    cost.rounds = std::max(cost.rounds, step.round);
    sent[static_cast<std::size_t>(rank)] += step.count;
  });
  cost.sent = *std::max_element(sent.begin(), sent.end());
  return cost;
}

}  // namespace weft::schedule

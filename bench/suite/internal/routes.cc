#include "bench/suite/internal/routes.h"

#include <algorithm>
#include <cmath>

#include "bench/suite/internal/report.h"
#include "weft/base/error.h"
#include "weft/base/log.h"

namespace weft::cli::bench_internal {
namespace {

using schedule::Collective;
using schedule::Request;

Request request_of(const plan::Candidate& candidate, const plan::Question& question, int world) {
  return {.collective = question.collective,
          .algorithm = candidate.algorithm,
          .world = world,
          .count = question.count,
          .chunk = candidate.chunk / static_cast<std::int64_t>(question.element)};
}

bool same_step(const schedule::Step& a, const schedule::Step& b) {
  return a.action == b.action && a.round == b.round && a.peer == b.peer && a.from == b.from &&
         a.to == b.to && a.src == b.src && a.dst == b.dst && a.count == b.count &&
         a.flipped == b.flipped;
}

bool same_schedule(Request a, Request b) {
  for (int rank = 0; rank < a.world; ++rank) {
    a.rank = b.rank = rank;
    const auto one = schedule::make(a), other = schedule::make(b);
    if (!std::equal(one.steps.begin(), one.steps.end(), other.steps.begin(), other.steps.end(),
                    same_step))
      return false;
  }
  return true;
}

std::string command_for(const plan::Candidate& candidate, const plan::Question& question,
                        int block) {
  const std::int64_t chunk = candidate.chunk / static_cast<std::int64_t>(question.element);
  return "{\"do\":\"collective\",\"op\":" + json_quote(schedule::to_string(question.collective)) +
         ",\"algorithm\":" + json_quote(schedule::to_string(candidate.algorithm)) +
         ",\"count\":" + std::to_string(question.count) + ",\"chunk\":" + std::to_string(chunk) +
         ",\"iterations\":1,\"block\":" + std::to_string(block) + "}";
}

}  // namespace

std::string name_of(schedule::Algorithm algorithm, std::int64_t chunk) {
  const std::string name = schedule::to_string(algorithm);
  return chunk > 0 ? name + " in " + size_text(static_cast<std::size_t>(chunk)) : name;
}

std::int64_t count_of(Collective collective, std::int64_t bytes, int world) {
  if (collective == Collective::kBarrier) return 0;
  const std::int64_t unit =
      plan::payload({.collective = collective, .world = world, .count = 1}, sizeof(float));
  return std::max<std::int64_t>(1, bytes / unit);
}

std::vector<Route> routes_of(const plan::Planner& planner, const plan::Question& question) {
  std::vector<Route> routes;
  const int world = planner.place().world;
  for (const auto& candidate : planner.candidates(question)) {
    const Request request = request_of(candidate, question, world);
    const auto twin = std::find_if(routes.begin(), routes.end(), [&](const Route& route) {
      return same_schedule(request_of(route.candidate, question, world), request);
    });
    if (twin != routes.end()) {
      twin->same.push_back(candidate);
    } else {
      routes.push_back({candidate, {candidate}, 0, {}});
    }
  }
  return routes;
}

void measure(std::vector<Route>& routes, const plan::Question& question,
             const std::shared_ptr<Participant>& ranks, const Timing& timing) {
  std::vector<Contender> contenders;
  for (const Route& route : routes) {
    const std::string once = command_for(route.candidate, question, 1);
    ranks->ask(once, timing.limit);  // the first call allocates the memory
    const double us = ranks->ask(once, timing.limit).number("us", 1);
    const int block = static_cast<int>(std::clamp(timing.round_us / std::max(us, 0.1), 1.0, 200.0));
    contenders.push_back({name_of(route.candidate.algorithm, route.candidate.chunk), ranks, once,
                          command_for(route.candidate, question, block), "us"});
  }
  const auto all = interleave(contenders, {timing.rounds, timing.limit});
  std::vector<Route> measured;
  for (Route& route : routes) {
    const std::string name = name_of(route.candidate.algorithm, route.candidate.chunk);
    const auto found = std::find_if(all.begin(), all.end(),
                                    [&](const Series& series) { return series.impl == name; });
    if (found == all.end()) continue;
    route.rounds = found->rounds;
    route.seconds = median(found->rounds) * 1e-6;
    measured.push_back(std::move(route));
  }
  routes = std::move(measured);
}

}  // namespace weft::cli::bench_internal

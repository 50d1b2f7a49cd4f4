// `weft bench pipeline`: compares the steps of each schedule with the schedule's own bound, and
// measures how long ranks wait in them.
//
// The bound is the makespan of the schedule (schedule/pipeline/play.h). Its costs of forward and
// backward are measured while each rank computes its own blocks without communication, at the same
// time as the other ranks.
#include <algorithm>
#include <array>

#include "bench/suite/internal/benches.h"
#include "bench/suite/internal/pipeline_rank.h"
#include "bench/suite/internal/report.h"
#include "bench/suite/internal/rounds.h"
#include "weft/base/error.h"
#include "weft/schedule/pipeline/play.h"

namespace weft::cli::bench_internal {
namespace {

namespace lists = schedule::pipeline;

constexpr int kCheckedPipelineSteps = 4;
constexpr double kPipelineLossTolerance = 1e-4;
constexpr double kBound = 0.95, kIdle = 0.5;  // targets
constexpr std::array<const char*, 4> kSchedules = {"gpipe", "1f1b", "zb_h1", "zb_h2"};

struct BlocksCase {
  const char* name;
  PipelineCase what;
  int steps;
};
const BlocksCase kCases[] = {{"gpt-384", {"gpt-384"}, 1}, {"gpt-128", {"gpt-128"}, 5}};

// Results of one round.
struct Reached {
  double stage_ms = 0, bound_ms = 0, bound = 0, idle = 0;
};

class PipelineBench {
 public:
  PipelineBench(const BenchOptions& options, const Signals& signals)
      : options_(options), signals_(signals), report_(options.json), rounds_(rounds_of(options)) {}

  bool run(const BlocksCase& one) {
    const TempDir folder;
    const int ranks = options_.ranks;
    const RankOptions rank_options{.impl = "weft", .meeting_file = folder / "weft"};
    const auto participant = std::make_shared<Participant>(
        "weft", ranks,
        [&](int rank) {
          return serve_rank(rank, ranks, rank_options, [&](const comm::Group& group) {
            return make_pipeline(group, one.what);
          });
        },
        signals_);
    const auto expected =
        participant->ask(command("reference", "1f1b", kCheckedPipelineSteps), options_.limit)
            .numbers.at("losses");
    auto contenders = contenders_of(participant, one);
    if (contenders.empty())
      throw Error(Errc::kBadConfig, "no implementation of that name takes part in pipeline");
    const auto wanted = contenders.size();
    auto all = interleave(contenders, {rounds_, options_.limit});
    std::erase_if(all, [&](const Series& series) {
      return series.impl.rfind("weft-", 0) == 0 &&
             !losses_near(series, expected, {kPipelineLossTolerance, one.name});
    });
    print(one, all);
    return all.size() == wanted;
  }

 private:
  static std::string command(const std::string& task, const std::string& schedule, int steps) {
    return "{\"do\":" + json_quote(task) + ",\"schedule\":" + json_quote(schedule) +
           ",\"steps\":" + std::to_string(steps) +
           ",\"warmup\":" + std::to_string(steps == kCheckedPipelineSteps ? 0 : 1) + "}";
  }

  std::vector<Contender> contenders_of(const std::shared_ptr<Participant>& participant,
                                       const BlocksCase& one) const {
    std::vector<Contender> all;
    for (const std::string schedule : kSchedules) {
      if (!wanted(options_, "weft-" + schedule)) continue;
      all.push_back({"weft-" + schedule, participant,
                     command("steps", schedule, kCheckedPipelineSteps),
                     command("steps", schedule, one.steps), "step_ms"});
      all.push_back({"stage " + schedule, participant, command("stage", schedule, 1),
                     command("stage", schedule, one.steps), "step_ms"});
    }
    for (const char* task : {"frozen", "forward"}) {
      if (!all.empty())
        all.push_back({task, participant, command(task, "1f1b", 1),
                       command(task, "1f1b", one.steps), "step_ms"});
    }
    return all;
  }

  static const Series* find(const std::vector<Series>& all, const std::string& impl) {
    const auto found = std::find_if(all.begin(), all.end(),
                                    [&](const Series& series) { return series.impl == impl; });
    return found == all.end() ? nullptr : &*found;
  }

  lists::Request request(const std::string& schedule, const BlocksCase& one) const {
    return {.algorithm = lists::parse_algorithm(schedule),
            .ranks = options_.ranks,
            .micro_batches = one.what.micro_batches};
  }

  // The results by round; empty if a measurement is missing.
  std::vector<Reached> reached(const std::string& schedule, const BlocksCase& one,
                               const std::vector<Series>& all) const {
    const auto *steps = find(all, "weft-" + schedule), *stage = find(all, "stage " + schedule);
    const auto *frozen = find(all, "frozen"), *forward = find(all, "forward");
    std::vector<Reached> result;
    if (steps == nullptr || stage == nullptr || frozen == nullptr || forward == nullptr)
      return result;
    const auto list = lists::make(request(schedule, one));
    for (std::size_t round = 0; round < steps->rounds.size(); ++round) {
      const double least = 1e-3 * stage->rounds[round];  // noise must not make a cost negative
      lists::Costs costs;
      costs.forward = forward->rounds[round];
      costs.backward_input = std::max(least, frozen->rounds[round] - costs.forward);
      costs.backward_weight =
          std::max(least, stage->rounds[round] - costs.forward - costs.backward_input);
      const double of_parts = costs.forward + costs.backward_input + costs.backward_weight;
      const double ms = stage->rounds[round] * lists::play(list, costs).makespan / of_parts /
                        one.what.micro_batches;
      result.push_back({stage->rounds[round], ms, ms / steps->rounds[round],
                        1 - stage->rounds[round] / steps->rounds[round]});
    }
    return result;
  }

  static double middle(const std::vector<Reached>& rounds, double Reached::*field) {
    std::vector<double> values;
    for (const auto& one : rounds) values.push_back(one.*field);
    return median(values);
  }

  void print(const BlocksCase& one, const std::vector<Series>& all) const {
    report_.text("\n" + std::string(one.name) + "'s blocks, " + std::to_string(options_.ranks) +
                 " stages, " + std::to_string(one.what.micro_batches) + " micro-batches of " +
                 std::to_string(one.what.samples) + ", " + std::to_string(rounds_) +
                 " interleaved rounds");
    report_.row({"", "step ms", "p95", "stage alone ms", "bound ms", "bound / step", "idle",
                 "idle, planned"});
    std::vector<Target> targets;
    const double idle_of_1f1b = middle(reached("1f1b", one, all), &Reached::idle);
    for (const std::string schedule : kSchedules) {
      const auto rounds = reached(schedule, one, all);
      if (rounds.empty()) continue;
      const std::string impl = "weft-" + schedule;
      const double bound = middle(rounds, &Reached::bound), idle = middle(rounds, &Reached::idle);
      const double planned = lists::play(lists::make(request(schedule, one)), {}).idle_share;
      const Series& steps = *find(all, impl);
      report_.row({impl, digits(median(steps.rounds)), digits(p95(steps.samples)),
                   digits(middle(rounds, &Reached::stage_ms)),
                   digits(middle(rounds, &Reached::bound_ms)), times(bound),
                   digits(100 * idle) + " %", digits(100 * planned) + " %"});
      lines(one, steps, bound, idle);
      targets.push_back({impl, impl + ", bound / step", bound, kBound, false});
      if (schedule.rfind("zb", 0) == 0 && idle_of_1f1b > 0)  // noise can make it negative
        targets.push_back(
            {impl, "idle of " + impl + " / of weft-1f1b", idle / idle_of_1f1b, kIdle, true});
    }
    report_.targets("pipeline", params(one), targets, rounds_);
  }

  std::vector<LogField> params(const BlocksCase& one) const {
    return {{"model", one.name},
            {"micro_batches", one.what.micro_batches},
            {"samples", one.what.samples},
            {"ranks", options_.ranks}};
  }

  void lines(const BlocksCase& one, const Series& steps, double bound, double idle) const {
    std::vector<LogField> all = {{"impl", steps.impl}};
    for (const auto& field : params(one)) all.push_back(field);
    report_.line(
        {"pipeline", all, median(steps.rounds), "ms", rounds_, p95(steps.samples), steps.rounds});
    for (const auto& [name, value] : {std::pair{"bound / step", bound}, std::pair{"idle", idle}}) {
      auto longer = all;
      longer.emplace_back("share", name);
      report_.line({"pipeline", longer, value, "of the time", rounds_});
    }
  }

  const BenchOptions& options_;
  const Signals& signals_;
  Report report_;
  int rounds_;
};

}  // namespace

int bench_pipeline(const BenchOptions& options, const Signals& signals) {
  PipelineBench bench(options, signals);
  bool good = true;
  for (const auto& one : kCases) {
    const bool asked =
        options.models.empty() ||
        std::find(options.models.begin(), options.models.end(), one.name) != options.models.end();
    if (asked) good &= bench.run(one);
  }
  return good ? 0 : 1;
}

}  // namespace weft::cli::bench_internal

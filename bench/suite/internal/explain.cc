// `weft bench collectives --explain` and `--verify`: the schedule that is chosen for a collective
// over TCP, the predicted cost of all others, and a measurement of whether the choice is good.
#include <algorithm>

#include "bench/suite/internal/benches.h"
#include "bench/suite/internal/report.h"
#include "bench/suite/internal/routes.h"
#include "bench/suite/internal/schedule_rank.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/plan/collectives/calibration.h"

namespace weft::cli::bench_internal {
namespace {

using plan::Transport;
using schedule::Collective;

constexpr double kGood = 1.1;

std::vector<Collective> collectives_of(const BenchOptions& options) {
  const auto all = schedule::collectives();
  if (options.ops.empty()) return {all.begin(), all.end()};
  std::vector<Collective> wanted;
  for (const auto& op : options.ops) wanted.push_back(schedule::parse_collective(op));
  return wanted;
}

// The default sizes are not those of the calibration.
std::vector<std::int64_t> sizes_of(const BenchOptions& options, Collective collective) {
  if (collective == Collective::kBarrier) return {0};
  if (options.sizes.empty()) return {200, 5'000, 50'000, 500'000, 2'500'000, 10'000'000};
  return {options.sizes.begin(), options.sizes.end()};
}

std::vector<int> worlds_of(const BenchOptions& options, std::vector<int> missing) {
  return options.worlds.empty() ? std::move(missing) : options.worlds;
}

std::string head_of(const plan::Question& question, int world, std::int64_t bytes) {
  const std::string size = bytes > 0 ? ", " + size_text(static_cast<std::size_t>(bytes)) : "";
  return std::string(schedule::to_string(question.collective)) + size + ", " +
         std::to_string(world) + " ranks";
}

std::string source_of(const plan::CostTable& table) {
  return table.date.empty() ? "built-in costs (weft bench calibrate measures this machine's)"
                            : "costs measured on " + table.date + " on " + table.machine;
}

std::vector<LogField> params(const plan::Question& question, int world, std::int64_t bytes,
                             const plan::Candidate& one) {
  return {{"impl", name_of(one.algorithm, one.chunk)},
          {"op", schedule::to_string(question.collective)},
          {"bytes", bytes},
          {"ranks", world},
          {"transport", "tcp"}};
}

template <class Use>
void each_point(const BenchOptions& options, int world, Use use) {
  for (const Collective collective : collectives_of(options)) {
    for (const std::int64_t bytes : sizes_of(options, collective)) {
      use(plan::Question{collective, count_of(collective, bytes, world), sizeof(float)}, bytes);
    }
  }
}

// Whether the choice runs as this candidate at this size. A choice is made for a class of sizes, so
// its chunks can be longer than the array, which is then not divided.
bool runs_as(const plan::Candidate& choice, const plan::Candidate& one, std::int64_t bytes) {
  return one.algorithm == choice.algorithm &&
         (one.chunk == choice.chunk || (one.chunk == 0 && choice.chunk >= bytes));
}

// Number of measured points, of good choices among them, and the worst ratio to the best.
struct Share {
  int points = 0, good = 0;
  double worst = 1;
  std::string text() const {
    return std::to_string(good) + " of " + std::to_string(points) + " points (" +
           digits(100.0 * good / std::max(points, 1)) +
           " %) within 10 % of the best, the worst at " + times(worst);
  }
};

// The time of the chosen route relative to the best one, as the median over the rounds.
double regret(const Route& chosen, const Route& best) {
  std::vector<double> ratios;
  for (std::size_t round = 0; round < chosen.rounds.size(); ++round)
    ratios.push_back(chosen.rounds[round] / best.rounds[round]);
  return median(ratios);
}

class Verification {
 public:
  Verification(const BenchOptions& options, const Report& report)
      : options_(options), report_(report) {}

  Share world(const plan::CostTable& table, int world,
              const std::shared_ptr<Participant>& ranks) const {
    const plan::Planner planner(table, {Transport::kTcp, world});
    Share share;
    each_point(options_, world, [&](const plan::Question& question, std::int64_t bytes) {
      auto routes = routes_of(planner, question);
      measure(routes, question, ranks, {.rounds = rounds()});
      point(planner.choose(question),
            run_off(planner.choose(question), routes, question, bytes, ranks), question,
            {world, bytes, share});
    });
    return share;
  }

 private:
  struct Pair {
    Route chosen, best;
  };
  struct Point {
    int world;
    std::int64_t bytes;
    Share& share;
  };

  int rounds() const { return options_.rounds > 0 ? options_.rounds : 7; }

  // Measures the chosen route and the best one once more, only with each other: the lowest of many
  // noisy medians is partly low by chance.
  Pair run_off(const plan::Candidate& choice, const std::vector<Route>& routes,
               const plan::Question& question, std::int64_t bytes,
               const std::shared_ptr<Participant>& ranks) const {
    const auto chosen = std::find_if(routes.begin(), routes.end(), [&](const Route& route) {
      return std::any_of(route.same.begin(), route.same.end(),
                         [&](const auto& one) { return runs_as(choice, one, bytes); });
    });
    WEFT_CHECK(chosen != routes.end(), "the choice is none of the candidates that were measured");
    const auto best =
        std::min_element(routes.begin(), routes.end(),
                         [](const Route& a, const Route& b) { return a.seconds < b.seconds; });
    if (best == chosen) return {*chosen, *chosen};
    std::vector<Route> pair{*chosen, *best};
    measure(pair, question, ranks, {.rounds = 2 * rounds() + 1});
    if (pair.size() < 2)
      throw Error(Errc::kUnavailable, "a way that was measured before has failed");
    return pair[0].seconds <= pair[1].seconds ? Pair{pair[0], pair[0]} : Pair{pair[0], pair[1]};
  }

  void point(const plan::Candidate& choice, const Pair& pair, const plan::Question& question,
             const Point& at) const {
    const Route &chosen = pair.chosen, &best = pair.best;
    const double ratio = regret(chosen, best);
    ++at.share.points;
    at.share.good += ratio <= kGood ? 1 : 0;
    at.share.worst = std::max(at.share.worst, ratio);
    std::string line =
        head_of(question, at.world, at.bytes) + ": " + name_of(choice.algorithm, choice.chunk) +
        " " + digits(chosen.seconds * 1e6) + " us (predicted " + digits(choice.seconds * 1e6) + ")";
    if (best.candidate.algorithm != chosen.candidate.algorithm ||
        best.candidate.chunk != chosen.candidate.chunk)
      line += ", best " + name_of(best.candidate.algorithm, best.candidate.chunk) + " " +
              digits(best.seconds * 1e6) + " us, " + times(ratio);
    report_.text(line + (ratio > kGood ? "  <-- " : ""));
    auto fields = params(question, at.world, at.bytes, choice);
    fields.emplace_back("best", name_of(best.candidate.algorithm, best.candidate.chunk));
    report_.line({"choice", fields, ratio, "times the best", static_cast<int>(best.rounds.size())});
  }

  const BenchOptions& options_;
  const Report& report_;
};

}  // namespace

int bench_explain(const BenchOptions& options) {
  const Report report(options.json);
  const plan::CostTable table = plan::load_table();
  report.text("over tcp, by " + source_of(table));
  for (const int world : worlds_of(options, {options.ranks})) {
    const plan::Planner planner(table, {Transport::kTcp, world});
    each_point(options, world, [&](const plan::Question& question, std::int64_t bytes) {
      const auto choice = planner.choose(question);
      report.text("\n" + head_of(question, world, bytes) + ": " +
                  name_of(choice.algorithm, choice.chunk));
      for (const auto& one : planner.candidates(question)) {
        report.row({"  " + name_of(one.algorithm, one.chunk), digits(one.seconds * 1e6) + " us",
                    times(one.seconds / choice.seconds),
                    one.measured ? "measured" : "by the model"});
        report.line(
            {"explain", params(question, world, bytes, one), one.seconds * 1e6, "us predicted", 0});
      }
    });
  }
  return 0;
}

int bench_verify(const BenchOptions& options, const Signals& signals) {
  const Report report(options.json);
  const plan::CostTable table = plan::load_table();
  report.text("over tcp, by " + source_of(table));
  Share all;
  for (const int world : worlds_of(options, {2, 4})) {
    const TempDir folder;
    const auto ranks = start_schedule_ranks(Transport::kTcp, world, folder.path(), signals);
    const Share share = Verification(options, report).world(table, world, ranks);
    report.text(std::to_string(world) + " ranks: " + share.text() + "\n");
    all.points += share.points;
    all.good += share.good;
    all.worst = std::max(all.worst, share.worst);
  }
  report.text("all: " + all.text());
  report.line({"choice",
               {{"impl", "weft"}, {"points", all.points}},
               100.0 * all.good / std::max(all.points, 1),
               "% within 10 % of the best",
               1});
  return 0;
}

}  // namespace weft::cli::bench_internal

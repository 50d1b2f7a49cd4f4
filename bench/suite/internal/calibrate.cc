// `weft bench calibrate`: measures the transports of this machine once, and writes the table that
// comm plans with (weft/plan).
#include <algorithm>
#include <chrono>
#include <cmath>

#include "bench/suite/internal/benches.h"
#include "bench/suite/internal/report.h"
#include "bench/suite/internal/routes.h"
#include "bench/suite/internal/schedule_rank.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/base/text/words.h"
#include "weft/plan/collectives/calibration.h"

namespace weft::cli::bench_internal {
namespace {

using plan::Curve;
using plan::Transport;
using schedule::Collective;

constexpr std::int64_t kLinkBytes[] = {8,         1 << 10, 8 << 10,   64 << 10,
                                       512 << 10, 4 << 20, 25'000'000};
// Sizes of the knots of a curve. Between two knots, a curve is a straight line; below the first
// knot it is constant. The first knot of an algorithm in chunks is above the chunk size. Curves
// bend within a power of two where protocols change and where chunks begin, so these powers have
// two knots each.
std::vector<std::int64_t> collective_bytes() {
  std::vector<std::int64_t> sizes{64, 256, 1 << 10, 2 << 10, 4 << 10};
  for (std::int64_t power = 4 << 10; power < (4 << 20); power *= 2)
    sizes.insert(sizes.end(), {power + power / 2, 2 * power});
  sizes.insert(sizes.end(), {8 << 20, 16 << 20});
  return sizes;
}
constexpr double kRoundUs = 2000;
// Routes that take at most this many times the time of the best one are measured again.
constexpr double kClose = 1.4;

// Measures single commands on a pair of ranks.
class Link {
 public:
  Link(Transport transport, const std::string& folder, const Signals& signals,
       const BenchOptions& options)
      : ranks_(start_schedule_ranks(transport, 2, folder, signals)),
        limit_(options.limit),
        blocks_(blocks_of(options)) {}
  static int blocks_of(const BenchOptions& options) {
    return options.rounds > 0 ? options.rounds : 9;
  }

  // The time in seconds, as the median of the blocks.
  double seconds(const std::string& what, std::int64_t bytes, int messages = 1) const {
    const auto command = [&](int iterations, int block) {
      return "{\"do\":" + json_quote(what) + ",\"bytes\":" + std::to_string(bytes) +
             ",\"messages\":" + std::to_string(messages) +
             ",\"iterations\":" + std::to_string(iterations) +
             ",\"block\":" + std::to_string(block) + "}";
    };
    ranks_->ask(command(1, 1), limit_);
    const double us = ranks_->ask(command(1, 1), limit_).number("us", 1);
    return median(ranks_->ask(command(blocks_, block(us)), limit_).numbers.at("us")) * 1e-6;
  }
  double barrier() const {
    const std::string command =
        R"({"do":"collective","op":"barrier","algorithm":"direct","count":0,"block":100,)"
        R"("iterations":)" +
        std::to_string(blocks_) + "}";
    return median(ranks_->ask(command, limit_).numbers.at("us")) * 1e-6;
  }
  Curve curve(const std::string& what) const {
    std::vector<Curve::Knot> knots;
    for (const std::int64_t bytes : kLinkBytes)
      knots.push_back({static_cast<double>(bytes), seconds(what, bytes)});
    return Curve(knots);
  }

 private:
  static int block(double us) {
    return static_cast<int>(std::clamp(kRoundUs / std::max(us, 0.1), 1.0, 1000.0));
  }

  std::shared_ptr<Participant> ranks_;
  std::chrono::milliseconds limit_;
  int blocks_;
};

plan::TransportCost link_cost(Transport transport, const Link& link) {
  plan::TransportCost cost{.message = link.curve("ping_pong"),
                           .reduce = link.curve("reduce"),
                           .copy = link.curve("copy"),
                           .measured = {}};
  if (transport == Transport::kDirect) {
    cost.meeting = link.barrier() / 2;
    return cost;
  }
  constexpr std::int64_t kLarge = 1 << 20, kSmall = 8;
  constexpr int kBurst = 17;
  const double one_way = cost.message.at(kLarge), empty = cost.message.at(0);
  cost.duplex =
      std::max(0.0, (link.seconds("swap", kLarge) - one_way) / std::max(one_way - empty, 1e-9));
  cost.overhead =
      std::max(0.0, (link.seconds("burst", kSmall, kBurst) - link.seconds("burst", kSmall, 1)) /
                        (kBurst - 1));
  return cost;
}

// Measures all routes. The lowest of many noisy medians is partly low by chance, and the choice
// must not depend on that. So the routes that could be the best are measured once more, only with
// each other and in three times the rounds.
std::vector<Route> timed_routes(const plan::Planner& planner, const plan::Question& question,
                                const std::shared_ptr<Participant>& ranks, int rounds) {
  auto routes = routes_of(planner, question);
  measure(routes, question, ranks, {.rounds = rounds, .round_us = kRoundUs});
  std::stable_sort(routes.begin(), routes.end(),
                   [](const Route& a, const Route& b) { return a.seconds < b.seconds; });
  const auto far = std::find_if(routes.begin(), routes.end(), [&](const Route& route) {
    return route.seconds > kClose * routes[0].seconds;
  });
  if (far - routes.begin() < 2) return routes;
  std::vector<Route> close(routes.begin(), far);
  measure(close, question, ranks, {.rounds = 3 * rounds, .round_us = kRoundUs});
  routes.erase(routes.begin(), far);
  routes.insert(routes.begin(), close.begin(), close.end());
  return routes;
}

// Adds the curves of all routes of one collective for one world size.
void add_curves(plan::TransportCost& cost, const plan::Planner& planner, Collective collective,
                const std::shared_ptr<Participant>& ranks, int rounds) {
  struct Points {
    plan::Candidate candidate;
    std::vector<Curve::Knot> knots;
  };
  std::vector<Points> curves;
  const int world = planner.place().world;
  for (const std::int64_t bytes : collective_bytes()) {
    const plan::Question question{collective, count_of(collective, bytes, world), sizeof(float)};
    const double at = static_cast<double>(plan::payload(
        {.collective = collective, .world = world, .count = question.count}, sizeof(float)));
    for (const Route& route : timed_routes(planner, question, ranks, rounds)) {
      for (const auto& one : route.same) {
        auto found = std::find_if(curves.begin(), curves.end(), [&](const Points& points) {
          return points.candidate.algorithm == one.algorithm && points.candidate.chunk == one.chunk;
        });
        if (found == curves.end()) found = curves.insert(curves.end(), {one, {}});
        if (found->knots.empty() || found->knots.back().bytes < at)
          found->knots.push_back({at, route.seconds});
      }
    }
    if (collective == Collective::kBarrier) break;
  }
  for (const auto& [candidate, knots] : curves) {
    cost.measured.push_back(
        {collective, candidate.algorithm, world, Curve(knots), candidate.chunk});
  }
}

class Findings {
 public:
  Findings(const Report& report, int blocks) : report_(report), blocks_(blocks) {}

  void head() const {
    report_.row({"", "latency", "bandwidth", "reduction", "copy", "other way", "each message"});
  }
  void link(Transport transport, const plan::TransportCost& cost) const {
    const auto rate = [](const Curve& curve) {
      return digits(25e6 / curve.at(25e6) / 1e9) + " GB/s";
    };
    const bool direct = transport == Transport::kDirect;
    const double latency = direct ? 2 * cost.meeting : cost.message.at(8);
    report_.row({plan::to_string(transport), digits(latency * 1e6) + " us", rate(cost.message),
                 rate(cost.reduce), rate(cost.copy),
                 direct ? "-" : "+" + digits(100 * cost.duplex) + " %",
                 direct ? "-" : digits(cost.overhead * 1e6) + " us"});
    const auto line = [&](const char* what, double value, const char* unit) {
      report_.line({"calibrate",
                    {{"impl", "weft"}, {"transport", plan::to_string(transport)}, {"what", what}},
                    value,
                    unit,
                    blocks_});
    };
    line("latency", latency * 1e6, "us");
    line("bandwidth", 25e6 / cost.message.at(25e6) / 1e9, "GB/s");
    line("reduction", 25e6 / cost.reduce.at(25e6) / 1e9, "GB/s");
  }
  void best(const plan::CostTable& table, int world) const {
    const plan::Planner planner(table, {Transport::kTcp, world});
    report_.text("\ntcp, " + std::to_string(world) + " ranks: the best by size");
    for (const Collective collective : schedule::collectives()) {
      std::string line = std::string(schedule::to_string(collective)) + ":", last;
      for (std::int64_t bytes = 64; bytes <= (64 << 20); bytes *= 2) {
        const auto best =
            planner.choose({collective, count_of(collective, bytes, world), sizeof(float)});
        const std::string name = name_of(best.algorithm, best.chunk);
        if (name != last)
          line +=
              (last.empty() ? " " : ", from " + size_text(static_cast<std::size_t>(bytes)) + " ") +
              name;
        last = name;
        if (collective == Collective::kBarrier) break;
      }
      report_.text("  " + line);
    }
  }

 private:
  const Report& report_;
  const int blocks_;
};

}  // namespace

int bench_calibrate(const BenchOptions& options, const Signals& signals) {
  const Report report(options.json);
  const Findings findings(report, Link::blocks_of(options));
  plan::CostTable table{.machine = plan::machine_identity(),
                        .date = local_time(std::chrono::system_clock::now(), "%Y-%m-%d"),
                        .transports = {}};
  report.text(table.machine + ", " + table.date + "\n");
  findings.head();
  for (const Transport transport : {Transport::kDirect, Transport::kShm, Transport::kTcp}) {
    const TempDir folder;
    table.transports[transport] =
        link_cost(transport, Link(transport, folder.path(), signals, options));
    findings.link(transport, table.of(transport));
  }
  for (const int world : options.worlds.empty() ? std::vector<int>{2, 4} : options.worlds) {
    const TempDir folder;
    const plan::Planner planner(table, {Transport::kTcp, world});
    const auto ranks = start_schedule_ranks(Transport::kTcp, world, folder.path(), signals);
    const int rounds = rounds_of(options, 15);
    for (const Collective collective : schedule::collectives()) {
      add_curves(table.transports[Transport::kTcp], planner, collective, ranks, rounds);
    }
    findings.best(table, world);
  }
  report.text("\nwritten to " + plan::save_table(table));
  return 0;
}

}  // namespace weft::cli::bench_internal

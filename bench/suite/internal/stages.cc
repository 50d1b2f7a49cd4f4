// `weft bench stages`: compares the automatic stage cuts of a pipeline with the best of all cuts,
// by separately measured times of the parts.
#include <algorithm>
#include <limits>

#include "bench/suite/internal/benches.h"
#include "bench/suite/internal/pipeline_rank.h"
#include "bench/suite/internal/report.h"
#include "weft/base/error.h"

namespace weft::cli::bench_internal {
namespace {

constexpr int kMaxStages = 4;
constexpr double kSlowest = 1.05;  // target
constexpr const char* kCutModels[] = {"resnet18", "gpt-384", "gpt-128"};

// The time of each run of adjacent parts as one stage.
class Times {
 public:
  Times(int parts, std::vector<double> ms) : parts_(parts), ms_(std::move(ms)) {}

  // The time of the parts [begin, end).
  double of(int begin, int end) const {
    const int before = begin * parts_ - begin * (begin - 1) / 2;  // runs that begin earlier
    return ms_.at(static_cast<std::size_t>(before + end - begin - 1));
  }
  double slowest(const std::vector<int>& cuts) const {
    double ms = 0;
    int begin = 0;
    for (const int cut : cuts) {
      ms = std::max(ms, of(begin, cut));
      begin = cut;
    }
    return std::max(ms, of(begin, parts_));
  }
  // The cuts into this many stages with the fastest slowest stage. Tries all cuts.
  std::vector<int> best(int stages) const {
    std::vector<int> cuts, found;
    double least = std::numeric_limits<double>::infinity();
    search(stages - 1, cuts, found, least);
    return found;
  }

 private:
  void search(int left, std::vector<int>& cuts, std::vector<int>& found, double& least) const {
    if (left == 0) {
      if (const double ms = slowest(cuts); ms < least) {
        least = ms;
        found = cuts;
      }
      return;
    }
    for (int cut = cuts.empty() ? 1 : cuts.back() + 1; cut <= parts_ - left; ++cut) {
      cuts.push_back(cut);
      search(left - 1, cuts, found, least);
      cuts.pop_back();
    }
  }

  int parts_;
  std::vector<double> ms_;
};

std::string text_of(const std::vector<int>& cuts) {
  std::string text;
  for (const int cut : cuts) text += (text.empty() ? "" : ", ") + std::to_string(cut);
  return text;
}

}  // namespace

int bench_stages(const BenchOptions& options, const Signals& signals) {
  const Report report(options.json);
  const TempDir folder;
  const int rounds = rounds_of(options);
  const RankOptions rank_options{.impl = "weft", .meeting_file = folder / "weft"};
  Participant rank(
      "weft", 1, [&](int) { return serve_rank(0, 1, rank_options, make_stages); }, signals);
  for (const std::string model : kCutModels) {
    if (!options.models.empty() &&
        std::find(options.models.begin(), options.models.end(), model) == options.models.end())
      continue;
    const std::string head = "\"model\":" + json_quote(model);
    std::vector<std::vector<int>> automatic;  // before the times, which would warm up the caches
    for (int stages = 2; stages <= kMaxStages; ++stages) {
      const auto cuts =
          rank.ask("{\"do\":\"cuts\"," + head + ",\"stages\":" + std::to_string(stages) + "}",
                   options.limit);
      automatic.emplace_back(cuts.numbers.at("cuts").begin(), cuts.numbers.at("cuts").end());
    }
    const auto answer = rank.ask(
        "{\"do\":\"times\"," + head + ",\"rounds\":" + std::to_string(rounds) + "}", options.limit);
    const Times times(static_cast<int>(answer.number("count")), answer.numbers.at("ms"));
    report.text("\n" + model + ", " + std::to_string(rounds) + " rounds");
    report.row({"", "cuts", "slowest ms", "best cuts", "slowest ms"});
    std::vector<Target> targets;
    for (int stages = 2; stages <= kMaxStages; ++stages) {
      const auto& mine = automatic[static_cast<std::size_t>(stages - 2)];
      const auto best = times.best(stages);
      const std::string name = std::to_string(stages) + " stages";
      report.row({name, text_of(mine), digits(times.slowest(mine)), text_of(best),
                  digits(times.slowest(best))});
      targets.push_back({"weft", name + ", slowest / of the best cuts",
                         times.slowest(mine) / times.slowest(best), kSlowest, true});
    }
    report.targets("stages", {{"model", model}}, targets, rounds);
  }
  return 0;
}

}  // namespace weft::cli::bench_internal

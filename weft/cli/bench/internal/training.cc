// `weft bench training`: the time of a step, and the memory that it needs, beside compute alone and PyTorch.
#include <algorithm>
#include <cmath>

#include "weft/base/error.h"
#include "weft/cli/bench/internal/benches.h"
#include "weft/cli/bench/internal/report.h"
#include "weft/cli/bench/internal/rounds.h"
#include "weft/cli/bench/internal/training_rank.h"

namespace weft::cli::bench_internal {
namespace {

constexpr int kRounds = 9;
constexpr int kCheckedSteps = 4;
// The sum over ranks has another order than the reference's, and AdamW divides by gradients' roots.
constexpr double kLossTolerance = 2e-3;

// A row of the models, with steps that make a block of about a third of a second.
struct Case {
  const char* name;
  TrainingCase what;
  int steps, warmup;
};
const Case kCases[] = {{"mlp", {"mlp", "sgd", 64}, 100, 5},
                       {"cnn", {"cnn", "sgd", 64}, 10, 1},
                       {"resnet18", {"resnet18", "sgd", 32}, 4, 1},
                       {"resnet18-adamw", {"resnet18", "adamw", 32}, 4, 1}};

struct Way {
  const char* impl;
  Variant variant;
  bool shared_allocator;
};
constexpr Way kWays[] = {{"weft", Variant::kShared, true},
                         {"weft-private", Variant::kPrivate, true},
                         {"weft-alone", Variant::kAlone, true},
                         {"weft-alone-plain", Variant::kAlone, false}};

bool is_ours(const std::string& impl) { return impl.rfind("weft", 0) == 0; }

// Everything is started anew for each case: what one leaves behind isn't another's memory.
class TrainingBench {
 public:
  TrainingBench(const BenchOptions& options, const Signals& signals)
      : options_(options), signals_(signals), report_(options.json), rounds_(options.rounds > 0 ? options.rounds : kRounds) {}

  // False where one of weft's variants failed or was wrong.
  bool run(Case one) {
    if (options_.batch > 0) one.what.batch = options_.batch;
    const TempDir folder;
    std::vector<Contender> contenders;
    for (const auto& way : kWays) {
      if (wanted(options_, way.impl)) add_ranks(contenders, way, one, folder.path());
    }
    const auto ours = contenders.size();
    for (const char* mode : {"ddp", "alone"}) add_peer(contenders, mode, one);
    if (contenders.empty()) throw Error(Errc::kBadConfig, "no implementation of that name takes part in training");
    auto all = interleave(contenders, {rounds_, options_.limit});
    const std::size_t before = all.size();
    drop_wrong(all, one, folder.path());
    print(one, all);
    const auto good = std::count_if(all.begin(), all.end(), [](const auto& series) { return is_ours(series.impl); });
    return before >= all.size() && static_cast<std::size_t>(good) == ours;
  }

 private:
  std::shared_ptr<Participant> ranks(const Way& way, int count, const TrainingCase& what, const std::string& folder) {
    const RankOptions options{.impl = way.impl, .meeting_file = folder + "/" + way.impl, .shared_allocator = way.shared_allocator};
    const auto serve = [&](int rank) {
      return serve_rank(rank, count, options, [&](comm::Group group) { return make_training(group, way.variant, what); });
    };
    return std::make_shared<Participant>(way.impl, count, serve, signals_);
  }

  void add_ranks(std::vector<Contender>& contenders, const Way& way, const Case& one, const std::string& folder) {
    const auto steps = [](int count, int warmup) {
      return "{\"steps\":" + std::to_string(count) + ",\"warmup\":" + std::to_string(warmup) + "}";
    };
    contenders.push_back(
        {way.impl, ranks(way, options_.ranks, one.what, folder), steps(kCheckedSteps, 0), steps(one.steps, one.warmup), "step_ms"});
  }

  void add_peer(std::vector<Contender>& contenders, const std::string& mode, const Case& one) {
    if (!wanted(options_, "pytorch-" + mode)) return;
    Peers peers = training_peers(options_.ranks);
    for (const auto& why : peers.missing) log_warn("left out: " + why);
    if (peers.found.empty()) return;
    const std::string head = "{\"model\":" + json_quote(one.what.model) + ",\"optimizer\":" + json_quote(one.what.optimizer) +
                             ",\"mode\":" + json_quote(mode) + ",\"batch\":" + std::to_string(one.what.batch);
    const auto steps = [&](int count, int warmup) {
      return head + ",\"steps\":" + std::to_string(count) + ",\"warmup\":" + std::to_string(warmup) + "}";
    };
    peers.found[0].impl = "pytorch-" + mode;
    contenders.push_back(
        {peers.found[0].impl, start_peer(peers.found[0], signals_), steps(kCheckedSteps, 0), steps(one.steps, one.warmup), "step_ms"});
  }

  // Weft's losses against those of one process of plain libtorch on everybody's batches, and the ranks' weights against each other.
  void drop_wrong(std::vector<Series>& all, const Case& one, const std::string& folder) {
    const auto plain = ranks({"reference", Variant::kReference, false}, 1, one.what, folder);
    std::erase_if(all, [&](const Series& series) {
      if (!is_ours(series.impl)) return false;
      const bool alone = series.impl.find("alone") != std::string::npos;
      const std::string command =
          "{\"steps\":" + std::to_string(kCheckedSteps) + ",\"batches\":" + std::to_string(alone ? 1 : options_.ranks) + "}";
      const auto expected = plain->ask(command, options_.limit).numbers.at("losses");
      const auto& got = series.checked.numbers.at("losses");
      bool good = got.size() == expected.size();
      for (std::size_t i = 0; good && i < got.size(); ++i) good = std::abs(got[i] - expected[i]) <= kLossTolerance * expected[i];
      if (!good)
        log_error(series.impl + " is wrong on " + one.name + ": losses " + json_array(got) + ", one process has " + json_array(expected));
      const bool equal = alone || (series.checked.is_true("equal") && series.last.is_true("equal"));
      if (!equal) log_error(series.impl + " is wrong on " + one.name + ": its ranks hold different weights");
      return !good || !equal;
    });
  }

  void print(const Case& one, const std::vector<Series>& all) const {
    report_.text("\n" + one.what.model + ", " + one.what.optimizer + ", batch " + std::to_string(one.what.batch) + " a rank, " +
                 std::to_string(options_.ranks) + " ranks of one thread, " + std::to_string(rounds_) + " interleaved rounds of " +
                 std::to_string(one.steps) + " steps");
    report_.row({"", "step ms", "p95", "/ weft-alone", "/ alone-plain", "ddp / this", "state MB", "grown MB", "RSS a rank MB"});
    for (const auto& series : all) {
      const Memory memory = memory_of(series);
      const double state = series.impl == "weft-alone-plain" ? std::nan("") : memory.state;
      report_.row({series.impl, digits(median(series.rounds)), digits(p95(series.samples)), times(ratio(all, "weft-alone", series.impl)),
                   times(ratio(all, "weft-alone-plain", series.impl)), times(ratio(all, series.impl, "pytorch-ddp")), digits(state),
                   digits(memory.grown), digits(memory.rss)});
      lines(one, series, all, memory);
    }
  }

  struct Memory {
    double state, grown, rss;
  };
  // Of the host, in MB; the peers' by their own count of what each rank holds.
  Memory memory_of(const Series& series) const {
    const auto& numbers = series.last.numbers;
    const auto sum = [&](const std::string& key) {
      double total = 0;
      if (const auto found = numbers.find(key); found != numbers.end()) {
        for (const double value : found->second) total += value;
      }
      return total;
    };
    const double rss = sum("rss_mb");
    if (is_ours(series.impl)) return {sum("state_mb"), sum("grown_mb"), rss / options_.ranks};
    double state = 0;
    for (const char* part : {"weights", "gradients", "optimizer", "buckets"}) state += sum(std::string("state_mb.") + part);
    return {state * options_.ranks, rss - sum("rss_before_mb"), rss / options_.ranks};
  }

  // Median over rounds of the time of `above` / the time of `below`.
  static double ratio(const std::vector<Series>& all, const std::string& below, const std::string& above) {
    const auto find = [&](const std::string& impl) {
      return std::find_if(all.begin(), all.end(), [&](const Series& series) { return series.impl == impl; });
    };
    const auto a = find(above), b = find(below);
    return a == all.end() || b == all.end() ? std::nan("") : speedup(*b, *a);
  }

  void lines(const Case& one, const Series& series, const std::vector<Series>& all, const Memory& memory) const {
    const std::vector<LogField> params = {{"impl", series.impl},
                                          {"model", one.what.model},
                                          {"optimizer", one.what.optimizer},
                                          {"batch", one.what.batch},
                                          {"ranks", options_.ranks}};
    const auto with = [&](const char* name, const std::string& value) {
      auto longer = params;
      longer.emplace_back(name, value);
      return longer;
    };
    report_.line({"training", params, median(series.rounds), "ms", rounds_, p95(series.samples)});
    for (const char* other : {"weft-alone", "weft-alone-plain", "pytorch-ddp", "pytorch-alone"}) {
      const double value = ratio(all, series.impl, other);
      if (is_ours(series.impl) && series.impl != other && std::isfinite(value)) {
        report_.line({"training", with("against", other), value, "times faster", rounds_});
      }
    }
    if (series.impl != "weft-alone-plain") report_.line({"training", with("memory", "state"), memory.state, "MiB", 1});
    report_.line({"training", with("memory", "grown"), memory.grown, "MiB", 1});
    report_.line({"training", with("memory", "resident a rank"), memory.rss, "MiB", 1});
  }

  const BenchOptions& options_;
  const Signals& signals_;
  Report report_;
  int rounds_;
};

}  // namespace

int bench_training(const BenchOptions& options, const Signals& signals) {
  TrainingBench bench(options, signals);
  bool good = true;
  for (const auto& one : kCases) {
    const bool asked = options.models.empty() || std::find(options.models.begin(), options.models.end(), one.name) != options.models.end();
    if (asked) good &= bench.run(one);
  }
  return good ? 0 : 1;
}

}  // namespace weft::cli::bench_internal

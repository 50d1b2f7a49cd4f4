// `weft bench training`, `sharded` and `tensor`: compares the time and memory of a training step
// with compute alone and with the peers.
#include <algorithm>

#include "bench/suite/internal/benches.h"
#include "bench/suite/internal/report.h"
#include "bench/suite/internal/rounds.h"
#include "bench/suite/internal/training_rank.h"
#include "weft/base/error.h"

namespace weft::cli::bench_internal {
namespace {

constexpr int kCheckedSteps = 4;
// Sums over ranks have another order than in the reference, and AdamW amplifies the difference: it
// divides by the root of the mean squared gradient.
constexpr double kLossTolerance = 2e-3;

// A model and its settings. The number of steps makes a block of about a third of a second.
struct Case {
  const char* name;
  TrainingCase what;
  int steps, warmup;
};

struct Way {
  const char* impl;
  TrainingWay way;
  bool shared_allocator = true;
  bool one_rank = false;
};

// A mode of bench/peers/torch_training.py.
struct PeerMode {
  const char* impl;
  const char* mode;
};

// A target for a step of `impl`: it takes at most `limit` times the time of `against`; or, with
// `faster`, it is at least `limit` times faster than `against`.
struct Aim {
  const char* impl;
  const char* against;
  double limit;
  bool faster = false;
};

struct Plan {
  const char* bench;
  std::vector<Case> cases;
  std::vector<Way> ways;
  std::vector<PeerMode> peers;
  std::vector<const char*> below;  // columns with the ratio: this row / that implementation
  std::vector<const char*> above;  // columns with the ratio: that implementation / this row
  std::vector<Aim> aims = {};
};

const Plan kTraining = {"training",
                        {{"mlp", {"mlp", "sgd", 64}, 100, 5},
                         {"cnn", {"cnn", "sgd", 64}, 10, 1},
                         {"resnet18", {"resnet18", "sgd", 32}, 4, 1},
                         {"resnet18-adamw", {"resnet18", "adamw", 32}, 4, 1}},
                        {{"weft", {Variant::kShared}},
                         {"weft-parallelize", {Variant::kParallelize}},
                         {"weft-private", {Variant::kPrivate}},
                         {"weft-alone", {Variant::kAlone}},
                         {"weft-alone-plain", {Variant::kAlone}, false}},
                        {{"pytorch-ddp", "ddp"},
                         {"pytorch-ddp-tuned", "ddp-tuned"},
                         {"pytorch-alone", "alone"},
                         {"pytorch-alone-tuned", "alone-tuned"}},
                        {"weft-alone", "weft-alone-plain"},
                        {"pytorch-ddp", "pytorch-ddp-tuned"}};

const Plan kSharded = {
    "sharded",
    {{"gpt-384", {"gpt-384", "adamw", 4}, 2, 1}, {"gpt-128", {"gpt-128", "adamw", 8}, 6, 1}},
    {{"weft", {Variant::kShared}},
     {"weft-parallelize", {Variant::kParallelize}},
     {"weft-zero1", {Variant::kSharded, 1}},
     {"weft-zero2", {Variant::kSharded, 2}},
     {"weft-zero3", {Variant::kSharded, 3}},
     {"weft-zero1-private", {Variant::kSharded, 1, engine::Weights::kPrivate}},
     {"weft-zero2-private", {Variant::kSharded, 2, engine::Weights::kPrivate}},
     {"weft-zero3-private", {Variant::kSharded, 3, engine::Weights::kPrivate}},
     {"weft-alone", {Variant::kAlone}}},
    {{"pytorch-ddp", "ddp"},
     {"pytorch-ddp-tuned", "ddp-tuned"},
     {"pytorch-alone", "alone"},
     {"pytorch-alone-tuned", "alone-tuned"},
     {"pytorch-fsdp2", "fsdp2"},
     {"deepspeed-zero1", "zero1"},
     {"deepspeed-zero3", "zero3"}},
    {"weft-alone"},
    {"pytorch-ddp", "pytorch-ddp-tuned", "pytorch-fsdp2", "deepspeed-zero1", "deepspeed-zero3"},
    {{"weft", "weft-alone", 1.00},
     {"weft", "pytorch-ddp", 1.15, true},
     {"weft", "deepspeed-zero1", 1.35, true},
     {"weft-zero1", "weft-alone", 1.00},
     {"weft-zero1", "pytorch-ddp", 1.15, true},
     {"weft-zero1", "deepspeed-zero1", 1.35, true},
     {"weft-zero2", "weft-alone", 1.00},
     {"weft-zero2", "pytorch-ddp", 1.15, true},
     {"weft-zero2", "deepspeed-zero1", 1.35, true},
     {"weft-zero3", "weft-alone", 1.08},
     {"weft-zero3", "pytorch-fsdp2", 1.35, true},
     {"weft-zero3", "deepspeed-zero3", 1.35, true},
     {"weft-zero3-private", "weft-alone", 1.08},
     {"weft-zero3-private", "pytorch-fsdp2", 1.35, true},
     {"weft-zero3-private", "deepspeed-zero3", 1.35, true}}};

const Plan kTensor = {
    "tensor",
    {{"gpt-384", {"gpt-384", "adamw", 4}, 2, 1}, {"gpt-128", {"gpt-128", "adamw", 8}, 6, 1}},
    {{"weft-tensor", {Variant::kTensor}}, {"weft-one", {Variant::kWhole}, true, true}},
    {},
    {},
    {"weft-one"},
    {{"weft-tensor", "weft-one", 1.75, true}}};

bool is_deepspeed(const std::string& impl) { return impl.rfind("deepspeed", 0) == 0; }
bool is_alone(const std::string& impl) { return impl.find("alone") != std::string::npos; }

// Starts new processes for each case, so that the memory of one case does not count in another.
class TrainingBench {
 public:
  TrainingBench(const Plan& plan, const BenchOptions& options, const Signals& signals)
      : plan_(plan),
        options_(options),
        signals_(signals),
        report_(options.json),
        rounds_(rounds_of(options)) {}

  // Returns false if a variant of weft failed or was wrong.
  bool run(Case one) {
    if (options_.batch > 0) one.what.batch = options_.batch;
    one.what.batches = options_.ranks;
    const TempDir folder;
    std::vector<Contender> contenders;
    for (const auto& way : plan_.ways) {
      if (wanted(options_, way.impl)) add_ranks(contenders, way, one, folder.path());
    }
    const auto ours = contenders.size();
    for (const auto& peer : plan_.peers) {
      if (wanted(options_, peer.impl)) add_peer(contenders, peer, one);
    }
    if (contenders.empty())
      throw Error(Errc::kBadConfig,
                  std::string("no implementation of that name takes part in ") + plan_.bench);
    auto all = interleave(contenders, {rounds_, options_.limit});
    const std::size_t before = all.size();
    drop_wrong(all, one, folder.path());
    print(one, all);
    const auto good = std::count_if(all.begin(), all.end(),
                                    [](const auto& series) { return is_ours(series.impl); });
    return before >= all.size() && static_cast<std::size_t>(good) == ours;
  }

 private:
  std::shared_ptr<Participant> ranks(const Way& way, const TrainingCase& what,
                                     const std::string& folder) {
    const RankOptions options{.impl = way.impl,
                              .meeting_file = folder + "/" + way.impl,
                              .shared_allocator = way.shared_allocator};
    const int count = way.one_rank ? 1 : options_.ranks;
    const auto serve = [&](int rank) {
      return serve_rank(rank, count, options,
                        [&](comm::Group group) { return make_training(group, way.way, what); });
    };
    return std::make_shared<Participant>(way.impl, count, serve, signals_);
  }

  static std::string steps(std::string begin, int count, int warmup) {
    begin += "\"steps\":" + std::to_string(count) + ",\"warmup\":" + std::to_string(warmup) + "}";
    return begin;
  }
  static std::string head(const std::string& mode, const Case& one) {
    return "{\"model\":" + json_quote(one.what.model) +
           ",\"optimizer\":" + json_quote(one.what.optimizer) + ",\"mode\":" + json_quote(mode) +
           ",\"batch\":" + std::to_string(one.what.batch) + ",";
  }

  void add_ranks(std::vector<Contender>& contenders, const Way& way, const Case& one,
                 const std::string& folder) {
    contenders.push_back({way.impl, ranks(way, one.what, folder), steps("{", kCheckedSteps, 0),
                          steps("{", one.steps, one.warmup), "step_ms"});
  }

  std::shared_ptr<Participant> peer(const std::string& impl) {
    const Peers peers = training_peers(impl, options_.ranks, is_deepspeed(impl));
    warn_of_missing(peers);
    if (peers.found.empty()) return nullptr;
    return start_peer(peers.found[0], signals_);
  }

  void add_peer(std::vector<Contender>& contenders, const PeerMode& mode, const Case& one) {
    const auto participant = peer(mode.impl);
    const std::string begin = head(mode.mode, one);
    contenders.push_back({mode.impl, participant, steps(begin, kCheckedSteps, 0),
                          steps(begin, one.steps, one.warmup), "step_ms"});
  }

  // Drops series with wrong losses: they are compared with those of one process on the batches of
  // all ranks. Also drops series whose ranks hold copies of the weights that differ.
  void drop_wrong(std::vector<Series>& all, const Case& one, const std::string& folder) {
    const auto plain = ranks({"reference", {Variant::kReference}, false, true}, one.what, folder);
    const auto expected = [&](const std::string& impl) {
      const std::string batches = std::to_string(is_alone(impl) ? 1 : options_.ranks);
      return plain->ask(steps("{\"batches\":" + batches + ",", kCheckedSteps, 0), options_.limit)
          .numbers.at("losses");
    };
    std::vector<double> peers;
    const bool checks_peers = std::any_of(all.begin(), all.end(), [](const auto& s) {
      return !is_ours(s.impl) && !is_alone(s.impl);
    });
    if (const auto torch = checks_peers ? peer("pytorch-reference") : nullptr)
      peers = torch->ask(steps(head("reference", one), kCheckedSteps, 0), options_.limit)
                  .numbers.at("losses");
    std::erase_if(all, [&](const Series& series) {
      if (!is_ours(series.impl))
        return !is_alone(series.impl) && !losses_near(series, peers, {kLossTolerance, one.name});
      return !losses_near(series, expected(series.impl), {kLossTolerance, one.name}) ||
             !equal(series, one);
    });
  }

  bool equal(const Series& series, const Case& one) const {
    const auto way = std::find_if(plan_.ways.begin(), plan_.ways.end(),
                                  [&](const Way& way) { return way.impl == series.impl; });
    if (!way->way.has_copies() || (series.checked.is_true("equal") && series.last.is_true("equal")))
      return true;
    log_error(series.impl + " is wrong on " + one.name + ": its ranks hold different weights");
    return false;
  }

  void print(const Case& one, const std::vector<Series>& all) const {
    report_.text("\n" + one.what.model + ", " + one.what.optimizer + ", batch " +
                 std::to_string(one.what.batch) + " a rank, " + std::to_string(options_.ranks) +
                 " ranks of one thread, " + std::to_string(rounds_) + " interleaved rounds of " +
                 std::to_string(one.steps) + " steps");
    const auto last_part = [](const std::string& impl) { return impl.substr(impl.find('-') + 1); };
    std::vector<std::string> names{"", "step ms", "p95"};
    for (const auto* other : plan_.below)
      names.push_back(std::string("/ ").append(last_part(other)));
    for (const auto* other : plan_.above) names.push_back(last_part(other) + " / this");
    names.insert(names.end(), {"state MiB", "grown MiB", "RSS a rank MiB"});
    report_.row(names);
    for (const auto& series : all) {
      const Memory memory = memory_of(series);
      const double state = series.impl == "weft-alone-plain" ? std::nan("") : memory.state;
      std::vector<std::string> cells{series.impl, digits(median(series.rounds)),
                                     digits(p95(series.samples))};
      for (const auto* other : plan_.below) cells.push_back(times(ratio(all, other, series.impl)));
      for (const auto* other : plan_.above) cells.push_back(times(ratio(all, series.impl, other)));
      cells.insert(cells.end(), {digits(state), digits(memory.grown), digits(memory.rss)});
      report_.row(cells);
      lines(one, series, all, memory);
    }
    targets(one, all);
  }

  void targets(const Case& one, const std::vector<Series>& all) const {
    std::vector<Target> targets;
    for (const auto& aim : plan_.aims) {
      const double value =
          aim.faster ? ratio(all, aim.impl, aim.against) : ratio(all, aim.against, aim.impl);
      const std::string what = aim.faster ? std::string(aim.against) + " / " + aim.impl
                                          : std::string(aim.impl) + " / " + aim.against;
      if (std::isfinite(value)) targets.push_back({aim.impl, what, value, aim.limit, !aim.faster});
    }
    for (const auto& series : all) {
      const double whole = series.last.number("whole_mb");
      if (whole == 0 || series.impl.find("zero3") == std::string::npos) continue;
      targets.push_back({series.impl, series.impl + ", peak of a rank / whole",
                         series.last.number("peak_mb") / whole,
                         1.0 / options_.ranks + series.last.number("largest_mb") / whole, true});
    }
    report_.targets(
        plan_.bench,
        {{"model", one.what.model}, {"batch", one.what.batch}, {"ranks", options_.ranks}}, targets,
        rounds_);
  }

  struct Memory {
    double state, grown, rss;
  };
  // Memory in MiB. `state` and `grown`: of all ranks; for a peer, `state` is computed from its own
  // report, NaN if it has none. `rss`: mean over the ranks.
  Memory memory_of(const Series& series) const {
    const auto& numbers = series.last.numbers;
    const auto sum = [&](const std::string& key) {
      double total = 0;
      if (const auto found = numbers.find(key); found != numbers.end()) {
        for (const double value : found->second) total += value;
      }
      return total;
    };
    const double rss = sum("rss_mb"), ranks = static_cast<double>(numbers.at("rss_mb").size());
    if (is_ours(series.impl)) return {sum("state_mb"), sum("grown_mb"), rss / ranks};
    double state = numbers.contains("state_mb.weights") ? 0 : std::nan("");
    for (const char* part : {"weights", "gradients", "optimizer", "buckets"})
      state += sum(std::string("state_mb.") + part);
    return {state * ranks, rss - sum("rss_before_mb"), rss / ranks};
  }

  // The ratio of the times above / below, as the median over the rounds.
  static double ratio(const std::vector<Series>& all, const std::string& below,
                      const std::string& above) {
    const auto find = [&](const std::string& impl) {
      return std::find_if(all.begin(), all.end(),
                          [&](const Series& series) { return series.impl == impl; });
    };
    const auto a = find(above), b = find(below);
    return a == all.end() || b == all.end() ? std::nan("") : speedup(*b, *a);
  }

  void lines(const Case& one, const Series& series, const std::vector<Series>& all,
             const Memory& memory) const {
    const std::vector<LogField> params = {{"impl", series.impl},
                                          {"model", one.what.model},
                                          {"optimizer", one.what.optimizer},
                                          {"batch", one.what.batch},
                                          {"ranks", options_.ranks}};
    const auto line = [&](const char* name, const std::string& value, double number,
                          const char* unit, int runs) {
      auto longer = params;
      longer.emplace_back(name, value);
      if (std::isfinite(number)) report_.line({plan_.bench, longer, number, unit, runs});
    };
    report_.line({plan_.bench, params, median(series.rounds), "ms", rounds_, p95(series.samples),
                  series.rounds});
    for (const auto& other : all) {
      if (!is_ours(series.impl) || series.impl == other.impl) continue;
      if (is_ours(other.impl) && !is_alone(other.impl) && other.impl != "weft-one") continue;
      line("against", other.impl, ratio(all, series.impl, other.impl), "times faster", rounds_);
    }
    if (is_ours(series.impl))
      line("time", "processor, all ranks", series.last.number("cpu_ms"), "ms", 1);
    if (series.impl != "weft-alone-plain") line("memory", "state", memory.state, "MiB", 1);
    line("memory", "grown", memory.grown, "MiB", 1);
    line("memory", "resident a rank", memory.rss, "MiB", 1);
  }

  const Plan& plan_;
  const BenchOptions& options_;
  const Signals& signals_;
  Report report_;
  int rounds_;
};

int run(const Plan& plan, const BenchOptions& options, const Signals& signals) {
  TrainingBench bench(plan, options, signals);
  bool good = true;
  for (const auto& one : plan.cases) {
    const bool asked =
        options.models.empty() ||
        std::find(options.models.begin(), options.models.end(), one.name) != options.models.end();
    if (asked) good &= bench.run(one);
  }
  return good ? 0 : 1;
}

}  // namespace

int bench_training(const BenchOptions& options, const Signals& signals) {
  return run(kTraining, options, signals);
}
int bench_sharded(const BenchOptions& options, const Signals& signals) {
  return run(kSharded, options, signals);
}
int bench_tensor(const BenchOptions& options, const Signals& signals) {
  return run(kTensor, options, signals);
}

}  // namespace weft::cli::bench_internal

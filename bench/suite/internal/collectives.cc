// `weft bench collectives` and `p2p`: a table of sizes and implementations, with times and ratios.
#include <algorithm>
#include <array>

#include "bench/suite/internal/benches.h"
#include "bench/suite/internal/collective_rank.h"
#include "bench/suite/internal/core_sets.h"
#include "bench/suite/internal/report.h"
#include "bench/suite/internal/rounds.h"
#include "weft/base/error.h"

namespace weft::cli::bench_internal {
namespace {

struct CollectiveVariant {
  const char* impl;
  const char* transport;
  Way way;
};
constexpr CollectiveVariant kVariants[] = {{"weft-net", "auto", Way::kNet},
                                           {"weft", "auto", Way::kGroup},
                                           {"weft-prepared", "auto", Way::kPrepared},
                                           {"weft-ordinary", "auto", Way::kOrdinary},
                                           {"weft-tcp", "tcp", Way::kGroup}};

// The sizes to measure, rounded down to multiples of 4 x ranks.
std::vector<std::size_t> sizes_of(const BenchOptions& options, const std::string& op) {
  if (op == "barrier") return {8};
  std::vector<std::size_t> sizes = options.sizes;
  if (sizes.empty()) {
    sizes = {8,       1 << 10, 4 << 10,  16 << 10,  64 << 10, 256 << 10,
             1 << 20, 4 << 20, 25 << 20, 100 << 20, 256 << 20};
  }
  const std::size_t unit = 4 * static_cast<std::size_t>(options.ranks);
  for (auto& size : sizes) size = std::max(unit, size / unit * unit);
  return sizes;
}

std::shared_ptr<Participant> start_ranks(const CollectiveVariant& variant, int ranks,
                                         const std::string& folder, const Signals& signals) {
  const RankOptions options{.impl = variant.impl,
                            .meeting_file = folder + "/" + variant.impl,
                            .transport = variant.transport,
                            .bind_to_cores = true};
  const auto serve = [&](int rank) {
    return serve_rank(rank, ranks, options,
                      [&](comm::Group group) { return make_collectives(group, variant.way); });
  };
  return std::make_shared<Participant>(variant.impl, ranks, serve, signals);
}

std::vector<Contender> start(const BenchOptions& options, const std::string& folder,
                             const Signals& signals) {
  std::vector<Contender> contenders;
  for (const auto& variant : kVariants) {
    const bool tcp = variant.transport == std::string("tcp");
    const bool asked =
        options.impls.empty() ? tcp == (options.transport == "tcp") : wanted(options, variant.impl);
    if (asked)
      contenders.push_back(
          {variant.impl, start_ranks(variant, options.ranks, folder, signals), "", "", "us"});
  }
  Peers peers = collective_peers(options.ranks, options.transport == "tcp");
  warn_of_missing(peers);
  for (const auto& peer : peers.found) {
    if (wanted(options, peer.impl))
      contenders.push_back({peer.impl, start_peer(peer, signals), "", "", "us"});
  }
  return contenders;
}

// Prepared calls are for small vectors of all_reduce. Above this they equal the ordinary ones.
constexpr std::size_t kMaxPreparedBytes = 64 << 10;

bool takes_part(const std::string& impl, const std::string& op, std::size_t bytes) {
  const bool prepared = impl.ends_with("-prepared");
  return !prepared || (op == "all_reduce" && bytes <= kMaxPreparedBytes);
}

// Samples of a round. For small vectors, a sample is a block of calls, as in the peers.
int samples_for(std::size_t bytes) { return bytes >= 50'000'000 ? 2 : bytes >= 2'000'000 ? 5 : 10; }

// The state of the vectors before a call: rewritten by the rank, like gradients after backward in
// training; or left in place by the previous call.
constexpr std::array<const char*, 2> kVectors = {"rewritten", "in place"};

std::string command_for(const std::string& op, std::size_t bytes, int iterations,
                        const std::string& vectors) {
  const std::size_t block =
      std::clamp<std::size_t>((1 << 20) / std::max<std::size_t>(bytes, 1), 1, 100);
  return "{\"op\":" + json_quote(op) + ",\"bytes\":" + std::to_string(bytes) +
         ",\"iterations\":" + std::to_string(iterations) +
         ",\"warmup\":1,\"block\":" + std::to_string(block) +
         ",\"rewrite\":" + (vectors == kVectors[0] ? "1" : "0") + "}";
}

class CollectivesReport {
 public:
  // `cores` is the name of the cores of the ranks; empty: the first ones.
  CollectivesReport(const BenchOptions& options, const std::vector<Contender>& contenders,
                    const std::string& cores)
      : options_(options), cores_(cores), report_(options.json), rounds_(rounds_of(options)) {
    for (const auto& contender : contenders) columns_.push_back(contender.impl);
  }
  int rounds() const { return rounds_; }

  void head(const std::string& op, const std::string& vectors) {
    vectors_ = vectors;
    report_.text("\n" + op + ", float32, vectors " + vectors + ", " +
                 std::to_string(options_.ranks) + " ranks" +
                 (cores_.empty() ? "" : " on " + cores_ + " cores") +
                 ": microseconds, the median of " + std::to_string(rounds_) +
                 " interleaved rounds; below them how many times faster weft is");
    std::vector<std::string> cells = {""};
    cells.insert(cells.end(), columns_.begin(), columns_.end());
    report_.row(cells);
  }

  void add(const std::string& op, std::size_t bytes, const std::vector<Series>& all) const {
    std::vector<std::string> cells = {op == "barrier" ? op : size_text(bytes)};
    for (const auto& impl : columns_) {
      const Series* series = find(all, impl);
      cells.push_back(series != nullptr ? digits(median(series->rounds)) : "-");
    }
    report_.row(cells);
    for (const auto& series : all) {
      report_.line({options_.what, params(op, bytes, series.impl), median(series.rounds), "us",
                    rounds_, p95(series.samples), series.rounds});
    }
    for (const auto& ours : all) {
      if (is_ours(ours.impl)) ratios(op, bytes, ours, all);
    }
  }

 private:
  static const Series* find(const std::vector<Series>& all, const std::string& impl) {
    const auto found = std::find_if(all.begin(), all.end(),
                                    [&](const Series& series) { return series.impl == impl; });
    return found == all.end() ? nullptr : &*found;
  }
  std::vector<LogField> params(const std::string& op, std::size_t bytes,
                               const std::string& impl) const {
    std::vector<LogField> all = {{"impl", impl},        {"op", op},
                                 {"bytes", bytes},      {"dtype", "f32"},
                                 {"vectors", vectors_}, {"ranks", options_.ranks}};
    if (!cores_.empty()) all.emplace_back("cores", cores_);
    return all;
  }
  void ratios(const std::string& op, std::size_t bytes, const Series& ours,
              const std::vector<Series>& all) const {
    std::vector<std::string> cells = {"  " + ours.impl};
    bool any = false;
    for (const auto& impl : columns_) {
      const Series* theirs = is_ours(impl) ? nullptr : find(all, impl);
      cells.push_back(theirs != nullptr ? times(speedup(ours, *theirs)) : "");
      if (theirs == nullptr) continue;
      any = true;
      auto ratio = params(op, bytes, ours.impl);
      ratio.emplace_back("against", impl);
      report_.line({options_.what, ratio, speedup(ours, *theirs), "times faster", rounds_});
    }
    if (any) report_.row(cells);
  }

  const BenchOptions& options_;
  std::string cores_;
  Report report_;
  int rounds_;
  std::vector<std::string> columns_;
  std::string vectors_;  // one of kVectors
};

// Measures with ranks on the processors of `cores`; none: on the first ones.
int bench_on(const BenchOptions& options, const CoreSet& cores, const Signals& signals) {
  const OnCores here(cores.processors);
  const TempDir folder;
  const auto contenders = start(options, folder.path(), signals);
  if (contenders.empty())
    throw Error(Errc::kBadConfig,
                "no implementation of that name; there are weft-net, weft, weft-prepared, "
                "weft-ordinary, weft-tcp, openmpi, openmpi5, openmpi-tcp, mpich, gloo and ideal; "
                "openmpi, openmpi5 and mpich also with -prepared");
  CollectivesReport report(options, contenders, cores.name);
  bool complete = true;
  for (const auto& op :
       options.ops.empty() ? std::vector<std::string>{"all_reduce"} : options.ops) {
    for (const char* vectors : kVectors) {
      if (op == "barrier" && vectors == kVectors[0]) continue;
      report.head(op, vectors);
      for (const std::size_t bytes : sizes_of(options, op)) {
        std::vector<Contender> present;
        for (const auto& contender : contenders) {
          if (!takes_part(contender.impl, op, bytes)) continue;
          present.push_back(contender);
          present.back().check = command_for(op, bytes, 2, vectors);
          present.back().command = command_for(op, bytes, samples_for(bytes), vectors);
        }
        const auto all = interleave(present, {report.rounds(), options.limit});
        report.add(op, bytes, all);
        const auto ours = [](const auto& one) { return is_ours(one.impl); };
        complete &= std::count_if(all.begin(), all.end(), ours) ==
                    std::count_if(present.begin(), present.end(), ours);
      }
    }
  }
  return complete ? 0 : 1;
}

}  // namespace

int bench_p2p(const BenchOptions& options, const Signals& signals) {
  BenchOptions own = options;
  own.ranks = 2;
  own.ops = {"ping_pong"};
  if (own.sizes.empty()) own.sizes = {8, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 25 << 20};
  return bench_collectives(own, signals);
}

int bench_collectives(const BenchOptions& options, const Signals& signals) {
  const auto sets =
      core_sets(schedule::find_machine(), schedule::usable_processors(), options.ranks);
  Report(options.json).text(describe(sets));
  if (options.cores.empty()) return bench_on(options, {}, signals);
  int result = 0;
  bool any = false;
  for (const CoreSet& set : sets) {
    if (std::find(options.cores.begin(), options.cores.end(), set.name) == options.cores.end())
      continue;
    any = true;
    result = std::max(result, bench_on(options, set, signals));
  }
  if (!any)
    throw Error(Errc::kBadConfig, "this machine has no such cores for " +
                                      std::to_string(options.ranks) + " ranks (" + describe(sets) +
                                      ")");
  return result;
}

}  // namespace weft::cli::bench_internal

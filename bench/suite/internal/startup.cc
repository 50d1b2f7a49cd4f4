// `weft bench startup`: the time from the command to the end of the CNN's first training step, and
// the memory that a rank then uses.
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "bench/suite/internal/benches.h"
#include "bench/suite/internal/report.h"
#include "bench/suite/internal/rounds.h"
#include "weft/base/error.h"
#include "weft/base/file.h"

namespace weft::cli::bench_internal {
namespace {

using namespace std::chrono_literals;

struct Start {
  double seconds = 0;
  double rss_mb = 0;  // mean over the ranks
};

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Adds the resident megabytes of a process and of each of its descendants.
void add_resident(long pid, std::vector<double>& found) {
  const std::string folder = "/proc/" + std::to_string(pid);
  std::ifstream status(folder + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) found.push_back(std::atof(line.c_str() + 6) / 1024);
  }
  std::ifstream children(folder + "/task/" + std::to_string(pid) + "/children");
  for (long child = 0; children >> child;) add_resident(child, found);
}

class StartupBench {
 public:
  StartupBench(const BenchOptions& options, const Signals& signals)
      : options_(options), signals_(signals) {}

  // Runs `weft train` as a user does. The first line of metrics.jsonl is written at the end of the
  // first step.
  Start weft(const std::string& program, const std::string& recipe) const {
    const TempDir folder;
    launch::ProcessOptions process;
    process.argv = {program,      "train", recipe,   "-n",     std::to_string(options_.ranks),
                    "--progress", "none",  "--name", "startup"};
    for (const char* setting : {"train.log_every=1", "train.max_steps=1"})
      process.argv.insert(process.argv.end(), {"--set", setting});
    process.argv.insert(process.argv.end(), {"--set", "run.dir=\"" + folder.path() + "\""});
    process.environment = {"WEFT_LOG_LEVEL=warn"};
    process.stdout_fd = 2;
    const auto deadline = Deadline::in(options_.limit);
    const std::string metrics = folder / "startup/metrics.jsonl";
    const double begin = now();
    launch::Process train(process);
    struct stat file {};
    while (::stat(metrics.c_str(), &file) != 0 || file.st_size == 0) {
      signals_.pause(1ms);
      if (const auto ended = train.poll())
        throw Error(Errc::kUnavailable, "weft train ended with " + ended->describe());
      if (deadline.passed()) throw Error(Errc::kTimeout, "weft train finished no step in time");
    }
    Start start{now() - begin, 0};
    start.rss_mb = rank_mean(train.pid());
    // Waits until it has evaluated and written its checkpoint.
    while (!train.poll() && !deadline.passed()) signals_.pause(10ms);
    return start;
  }

  Start peer(const PeerProgram& program) const {
    const double begin = now();
    Participant torchrun(program.impl, program.argv, program.environment, signals_);
    const auto answer = torchrun.listen(options_.limit);
    const auto& rss = answer.numbers.at("rss_mb");
    Start start{answer.number("first_step_unix_s") - begin, 0};
    for (const double one : rss) start.rss_mb += one / static_cast<double>(rss.size());
    return start;
  }

 private:
  // The ranks are the largest processes: the launcher and its store process have no tensors.
  double rank_mean(long pid) const {
    std::vector<double> found;
    add_resident(pid, found);
    std::sort(found.rbegin(), found.rend());
    found.resize(std::min(found.size(), static_cast<std::size_t>(options_.ranks)));
    double sum = 0;
    for (const double one : found) sum += one;
    return sum / static_cast<double>(found.size());
  }

  const BenchOptions& options_;
  const Signals& signals_;
};

// The rounds of one participant.
struct Results {
  std::string impl;
  std::vector<double> seconds, rss_mb;

  void add(const Start& start) {
    seconds.push_back(start.seconds);
    rss_mb.push_back(start.rss_mb);
  }
};

void try_peer(const StartupBench& bench, Peers& peers, Results& results) {
  try {
    results.add(bench.peer(peers.found[0]));
  } catch (const Error& error) {
    log_warn("left out: " + peers.found[0].impl + ": " + error.message());
    peers.found.clear();
    results = {results.impl, {}, {}};
  }
}

void print(const Report& report, const BenchOptions& options, const Results& weft,
           const Results& torch) {
  report.text("\nfrom the command to the first finished step, CNN, " +
              std::to_string(options.ranks) + " ranks");
  report.row({"", "seconds", "p95", "ddp / this", "RSS a rank MiB", "this / ddp"});
  for (const Results* results : {&weft, &torch}) {
    if (results->seconds.empty()) continue;
    const double seconds = median(results->seconds), rss = median(results->rss_mb);
    report.row({results->impl, digits(seconds), digits(p95(results->seconds)),
                times(median(torch.seconds) / seconds), digits(rss),
                times(rss / median(torch.rss_mb))});
    const std::vector<LogField> params = {
        {"impl", results->impl}, {"model", "cnn"}, {"ranks", options.ranks}};
    const int runs = static_cast<int>(results->seconds.size());
    report.line({"startup", params, seconds, "s", runs, p95(results->seconds), results->seconds});
    auto memory = params;
    memory.emplace_back("memory", "resident a rank");
    report.line({"startup", memory, rss, "MiB", runs, p95(results->rss_mb), results->rss_mb});
  }
}

}  // namespace

int bench_startup(const BenchOptions& options, const Signals& signals) {
  const StartupBench bench(options, signals);
  const Report report(options.json);
  const int rounds = rounds_of(options, 5);
  const auto program = find_above("bin/weft"),
             recipe = find_above("recipes/fashion-mnist/recipe.toml");
  if (!program || !recipe)
    throw Error(Errc::kUnavailable,
                "no bin/weft or recipes/fashion-mnist above the program or the working directory");
  Peers peers = first_step_peers(options.ranks);
  warn_of_missing(peers);
  Results weft{"weft", {}, {}}, torch{"pytorch-ddp", {}, {}};
  for (int round = 0; round < rounds; ++round) {
    if (wanted(options, "weft")) weft.add(bench.weft(*program, *recipe));
    if (!peers.found.empty() && wanted(options, "pytorch-ddp")) try_peer(bench, peers, torch);
  }
  print(report, options, weft, torch);
  return 0;
}

}  // namespace weft::cli::bench_internal

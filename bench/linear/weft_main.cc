// weft's part of the bench of linear models: ranks that hold generated data and train on command.
//
//   weft_bench_linear [ranks=1] [rows=500000] [columns=47000] [entries=75] [transport=shm]
//   weft_bench_linear [rows=500000] [columns=47000] [entries=75] write=FOLDER
//
// The second form writes the data for the peers into an existing folder, as arrays without headers:
// labels.f64, begins.u64, columns.u32, values.f32.
//
// Reads one JSON object a line on stdin, writes one a line on stdout, and ends with stdin. Between
// commands all ranks sleep in a read. Each command trains from the beginning:
//
//   {"rule":"cocoa+","loss":"hinge","c":1,"gap":1e-3}
//   {"rule":"hogwild","loss":"logistic","c":1,"threads":2,"locks":"none","cluster_size":1,
//    "epochs":10,"step":2,"decay":0.8}
//
// With "curve":true, Hogwild! evaluates the objective after each epoch. The answer then has the
// curve and the seconds of the updates alone.
//
// The answer has the time that linear::train() takes on the slowest rank, from the rows in memory
// to the model. It also has the most processor time of a rank, which says more on a busy machine.
#include <ATen/Parallel.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "weft/base/error.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/linear/data/power_law.h"
#include "weft/linear/linear.h"

namespace weft::bench {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

linear::TrainOptions options_of(const json& command, double rows) {
  linear::TrainOptions options;
  options.objective.loss = linear::parse_loss(command.at("loss").get<std::string>());
  options.objective.l2 = 1 / (command.at("c").get<double>() * rows);
  options.rule = linear::parse_rule(command.at("rule").get<std::string>());
  options.cocoa.stop.relative_gap = command.value("gap", 1e-3);
  options.cocoa.stop.max_passes = command.value("max_passes", 1000);
  options.cocoa.certificate_every = command.value("certificate_every", 0);
  options.cocoa.local_passes = command.value("local_passes", 0.0);
  options.cocoa.sigma = command.value("sigma", std::string("measured")) == "safe"
                            ? linear::Sigma::kSafe
                            : linear::Sigma::kMeasured;
  options.hogwild.threads = command.value("threads", 1);
  options.hogwild.locks = linear::parse_locks(command.value("locks", std::string("none")));
  options.hogwild.cluster_size = command.value("cluster_size", 1);
  options.hogwild.exchange_rows = command.value("exchange_rows", 0);
  options.hogwild.epochs = command.value("epochs", 10);
  options.hogwild.step = command.value("step", 1.0);
  options.hogwild.decay = command.value("decay", 0.8);
  options.cocoa.seed = options.hogwild.seed = command.value("seed", 1u);
  return options;
}

// The objective of the model over all rows, computed apart from the solvers.
double objective_of(const Group& group, const linear::Model& model, const linear::SparseRows& rows,
                    const linear::TrainOptions& options) {
  std::vector<double> targets;
  for (const double label : rows.labels) targets.push_back(label == model.labels[0] ? 1 : -1);
  at::Tensor sums =
      at::tensor({linear::loss_sum(options.objective.loss, rows, targets, model.weights),
                  static_cast<double>(rows.size())},
                 at::kDouble);
  group.all_reduce(sums);
  return sums[0].item<double>() / sums[1].item<double>() +
         linear::regularizer(options.objective, model.weights);
}

// Processor time of this process.
double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

ordered_json train(const Group& group, const linear::SparseRows& rows, double total,
                   const json& command) {
  auto options = options_of(command, total);
  json curve = json::array();
  double updates = 0;  // Hogwild!: seconds without the evaluations of the objective
  const bool hogwild = options.rule == linear::Rule::kHogwild;
  const bool listens = !hogwild || command.value("curve", false);
  std::int64_t passes = hogwild ? options.hogwild.epochs : 0;
  const auto listen = [&](const linear::Report& report) {
    if (report.epoch) {
      updates = report.epoch->seconds;
      passes = report.epoch->epoch;
      curve.push_back({report.epoch->seconds, report.epoch->objective});
    } else {
      passes = static_cast<std::int64_t>(std::ceil(report.round->passes));
      if (report.round->certificate)
        curve.push_back({report.round->seconds, report.round->certificate->relative_gap()});
    }
  };
  if (listens) options.on_report = listen;
  auto copy = rows;
  group.barrier();
  const double cpu = cpu_seconds();
  const auto trained = linear::train(group, std::move(copy), options);
  at::Tensor seconds = at::tensor({trained.seconds, cpu_seconds() - cpu}, at::kDouble);
  group.all_reduce(seconds, ReduceOp::kMax);
  const auto& outcome = trained.outcomes[0];
  const double again = objective_of(group, trained.model, rows, options);
  ordered_json answer{{"impl", "weft"},
                      {"ranks", group.size()},
                      {"command", command},
                      {"verified", std::abs(again - outcome.objective) <= 1e-6 * again},
                      {"seconds", seconds[0].item<double>()},
                      {"cpu_seconds", seconds[1].item<double>()},
                      {"objective", again},
                      {"passes", passes},
                      {"exchanged_bytes", trained.exchanged_bytes},
                      {"curve", curve}};
  if (outcome.certificate) {
    answer["primal"] = outcome.certificate->primal;
    answer["dual"] = outcome.certificate->dual;
    answer["relative_gap"] = outcome.certificate->relative_gap();
    answer["converged"] = outcome.converged;
  } else if (listens) {
    answer["update_seconds"] = updates;
  }
  return answer;
}

// Ranks bound to cores, if there is one for each.
void bind(const Group& group) {
  const auto cores = std::thread::hardware_concurrency();
  if (cores < static_cast<unsigned>(group.size()) || group.size() == 1) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(group.rank()), &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

int serve(const Group& group, const linear::PowerLaw& law, int commands) {
  bind(group);
  at::set_num_threads(1);
  const auto r = static_cast<std::uint64_t>(group.rank());
  const auto k = static_cast<std::uint64_t>(group.size());
  const auto rows = linear::generate(law, law.rows * r / k, law.rows * (r + 1) / k);
  std::ifstream lines("/proc/self/fd/" + std::to_string(commands));
  for (std::string line; std::getline(lines, line);) {
    ordered_json answer;
    try {
      answer = train(group, rows, static_cast<double>(law.rows), json::parse(line));
    } catch (const json::exception& error) {
      answer = {{"impl", "weft"}, {"error", error.what()}};
    } catch (const Error& error) {
      answer = {{"impl", "weft"}, {"error", error.what()}};
    }
    if (group.rank() == 0) std::cout << answer.dump() << std::endl;
  }
  return 0;
}

using Numbers = std::map<std::string, std::int64_t>;

linear::PowerLaw law_of(const Numbers& numbers) {
  linear::PowerLaw law;
  law.rows = static_cast<std::uint64_t>(numbers.at("rows"));
  law.columns = static_cast<std::uint32_t>(numbers.at("columns"));
  law.row_entries = static_cast<std::uint32_t>(numbers.at("entries"));
  return law;
}

template <class T>
void write_array(const std::string& path, const std::vector<T>& values) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(T)));
  file.flush();
  if (!file) throw Error(Errc::kUnavailable, "cannot write " + path);
}

// Writes the data for the peers.
int write(const linear::PowerLaw& law, const std::string& folder) {
  const auto rows = linear::generate(law, 0, law.rows);
  std::vector<std::uint32_t> columns;
  std::vector<float> values;
  for (const linear::Entry& entry : rows.entries) {
    columns.push_back(entry.column);
    values.push_back(entry.value);
  }
  write_array(folder + "/labels.f64", rows.labels);
  write_array(folder + "/begins.u64", rows.begins);
  write_array(folder + "/columns.u32", columns);
  write_array(folder + "/values.f32", values);
  return 0;
}

int run(const Numbers& numbers, const std::string& transport) {
  const int ranks = static_cast<int>(numbers.at("ranks"));
  const linear::PowerLaw law = law_of(numbers);
  std::vector<std::array<int, 2>> pipes(static_cast<std::size_t>(ranks));
  for (auto& ends : pipes) {
    if (::pipe(ends.data()) != 0) return 70;
  }
  // Forwards stdin to the ranks, which are processes of their own.
  const pid_t reader = ::fork();
  if (reader == 0) {
    for (auto& ends : pipes) ::close(ends[0]);
    for (std::string line; std::getline(std::cin, line);) {
      line += '\n';
      for (auto& ends : pipes) {
        if (::write(ends[1], line.data(), line.size()) < 0) ::_exit(1);
      }
    }
    ::_exit(0);
  }
  for (auto& ends : pipes) ::close(ends[1]);
  const auto codes = comm::fork_ranks(
      ranks, transport,
      [&](const Group& group) {
        return serve(group, law, pipes[static_cast<std::size_t>(group.rank())][0]);
      },
      {}, std::chrono::hours(12));
  for (const int code : codes) {
    if (code != 0) return 70;
  }
  return 0;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) try {
  weft::bench::Numbers numbers{
      {"ranks", 1}, {"rows", 500'000}, {"columns", 47'000}, {"entries", 75}};
  std::string transport = "shm", folder;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i], name = argument.substr(0, argument.find('='));
    const std::string value = name.size() < argument.size() ? argument.substr(name.size() + 1) : "";
    if (name == "transport") {
      transport = value;
    } else if (name == "write") {
      folder = value;
    } else if (numbers.count(name) == 1 && !value.empty() &&
               value.find_first_not_of("0123456789") == std::string::npos) {
      numbers[name] = std::stoll(value);
    } else {
      std::fprintf(stderr, "weft_bench_linear: %s: give name=number of those in weft_main.cc\n",
                   argv[i]);
      return 2;
    }
  }
  if (!folder.empty()) return weft::bench::write(weft::bench::law_of(numbers), folder);
  return weft::bench::run(numbers, transport);
} catch (const std::exception& error) {
  std::fprintf(stderr, "weft_bench_linear: %s\n", error.what());
  return 70;
}

#include "tests/chaos/internal/train_command.h"

#include <algorithm>
#include <sstream>
#include <thread>

#include "weft/base/error.h"
#include "weft/base/fault/failpoint.h"
#include "weft/base/file.h"

namespace weft::chaos::internal {
namespace {

using Words = std::vector<std::string>;

void add(Words& words, const Words& more) { words.insert(words.end(), more.begin(), more.end()); }

// `weft train`, without the ranks.
Words train_words(const TrainCommand& train, bool resumed) {
  Words words{train.weft, "train", train.recipe, "--name", "run", "--progress", "none"};
  for (const std::string& setting : train.settings) add(words, {"--set", setting});
  add(words, {"--set", "run.dir=\"" + train.runs() + "\""});
  if (resumed) words.emplace_back("--resume");
  return words;
}

// Options of the launcher, `weft train` or `weft run`.
Words launching_words(const TrainCommand& train) {
  Words words;
  if (train.max_replacements)
    add(words, {"--max-replacements", std::to_string(*train.max_replacements)});
  if (train.min_ranks > 0) add(words, {"--min-ranks", std::to_string(train.min_ranks)});
  if (train.spares > 0) add(words, {"--spares", std::to_string(train.spares)});
  add(words, train.launching);
  return words;
}

// `weft run` of one host, which starts the ranks of `weft train` there.
Words launcher_words(const TrainCommand& train, int host) {
  const int hosts = train.hosts->count();
  Words words{train.weft,
              "run",
              "--nnodes",
              std::to_string(hosts),
              "--node-rank",
              std::to_string(host),
              "--master-addr",
              train.hosts->address(0),
              "--secret-file",
              train.folder + "/secret",
              "-n",
              std::to_string(std::stoi(train.ranks) / hosts)};
  add(words, launching_words(train));
  words.emplace_back("--");
  return words;
}

}  // namespace

JobOptions TrainCommand::job(const Words& environment, bool resumed) const {
  JobOptions options{.launchers = {}, .environment = environment, .folder = folder};
  if (hosts == nullptr) {
    Words words = train_words(*this, resumed);
    add(words, {"-n", ranks});
    add(words, launching_words(*this));
    options.launchers.push_back({.command = words});
    return options;
  }
  make_directories(folder);
  // The hosts share the processors of this machine.
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  const std::string threads = std::to_string(std::max(1, cores / std::stoi(ranks)));
  write_file_atomic(folder + "/secret", std::string(32, 's'));  // of namespaces that none can reach
  for (int host = 0; host < hosts->count(); ++host) {
    Words words = launcher_words(*this, host);
    add(words, train_words(*this, resumed));
    options.launchers.push_back(
        {.command = words,
         .environment = {"WEFT_HOST_ID=host" + std::to_string(host), "OMP_NUM_THREADS=" + threads},
         .before = [&network = *hosts, host] { network.enter(host); }});
  }
  return options;
}

std::vector<Fault> failpoint_faults(const std::string& text) {
  std::vector<Fault> faults;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ';');) {
    for (const Failpoint& one : parse_failpoints(word)) {
      WEFT_REQUIRE(one.action != Failpoint::Action::kBreak,
                   "--fail " + word + ": it is no fault; give it in WEFT_FAIL");
      WEFT_REQUIRE(one.rank >= 0, "--fail " + word + ": give the rank, such as :rank=1");
      faults.push_back({.kind = FaultKind::kFailpoint, .victim = one.rank, .failpoint = word});
    }
  }
  return faults;
}

}  // namespace weft::chaos::internal

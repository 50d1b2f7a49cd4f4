#include "bench/suite/internal/rounds.h"

#include <algorithm>
#include <cmath>

#include "weft/base/error.h"
#include "weft/base/log.h"

namespace weft::cli::bench_internal {
namespace {

// Returns false if the contender failed. It is not asked again in this case.
bool ask(Contender& contender, const std::string& command, std::chrono::milliseconds limit,
         Message& answer) {
  try {
    answer = contender.participant->ask(command, limit);
    return true;
  } catch (const Error& error) {
    log_warn(contender.impl + " is left out: " + error.message());
    if (error.code() != Errc::kInvalidArgument) contender.participant.reset();
    return false;
  }
}

bool play(Contender& contender, Series& series, std::chrono::milliseconds limit) {
  if (!contender.participant || !ask(contender, contender.command, limit, series.last))
    return false;
  const auto found = series.last.numbers.find(contender.samples);
  if (found == series.last.numbers.end() || found->second.empty()) {
    log_warn(contender.impl + " is left out: its answer has no " + contender.samples);
    return false;
  }
  series.rounds.push_back(median(found->second));
  series.samples.insert(series.samples.end(), found->second.begin(), found->second.end());
  return true;
}

}  // namespace

std::vector<Series> interleave(std::vector<Contender>& contenders, const RoundOptions& options) {
  std::vector<Series> series(contenders.size());
  std::vector<bool> good(contenders.size());
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    series[i].impl = contenders[i].impl;
    good[i] = contenders[i].participant &&
              ask(contenders[i], contenders[i].check, options.limit, series[i].checked);
  }
  // Each round begins with another contender.
  for (int round = 0; round < options.rounds; ++round) {
    for (std::size_t turn = 0; turn < contenders.size(); ++turn) {
      const std::size_t i = (turn + static_cast<std::size_t>(round)) % contenders.size();
      if (good[i]) good[i] = play(contenders[i], series[i], options.limit);
    }
  }
  std::vector<Series> complete;
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    if (good[i]) complete.push_back(std::move(series[i]));
  }
  return complete;
}

bool losses_near(const Series& series, const std::vector<double>& expected,
                 const LossCheck& check) {
  const auto& got = series.checked.numbers.at("losses");
  bool good = got.size() == expected.size();
  for (std::size_t i = 0; good && i < got.size(); ++i)
    good = std::abs(got[i] - expected[i]) <= check.tolerance * expected[i];
  if (!good) {
    log_error(series.impl + " is wrong on " + check.model + ": losses " + json_array(got) +
              ", one process has " + json_array(expected));
  }
  return good;
}

double median(std::vector<double> values) {
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double p95(std::vector<double> values) {
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<std::size_t>(std::ceil(0.95 * static_cast<double>(values.size())));
  return values[rank - 1];
}

double speedup(const Series& ours, const Series& theirs) {
  std::vector<double> ratios;
  for (std::size_t round = 0; round < ours.rounds.size() && round < theirs.rounds.size(); ++round) {
    ratios.push_back(theirs.rounds[round] / ours.rounds[round]);
  }
  return median(ratios);
}

}  // namespace weft::cli::bench_internal

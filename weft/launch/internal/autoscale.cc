#include "weft/launch/internal/autoscale.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "weft/base/text/numbers.h"

namespace weft::launch::internal {
namespace {

std::string trimmed(const std::string& line) {
  constexpr const char* kBlank = " \t\r";
  const auto from = line.find_first_not_of(kBlank);
  return from == std::string::npos ? ""
                                   : line.substr(from, line.find_last_not_of(kBlank) - from + 1);
}

}  // namespace

Discovered slots_of(const std::string& output, const std::vector<std::string>& names) {
  int slots = 0;
  std::istringstream lines(output);
  for (std::string raw; std::getline(lines, raw);) {
    const std::string line = trimmed(raw);
    if (line.empty()) continue;
    const auto colon = line.rfind(':');
    const std::string host = line.substr(0, colon);
    const auto count =
        colon == std::string::npos ? std::optional(1) : parse_count(line.substr(colon + 1));
    if (host.empty() || host.find_first_of(" \t") != std::string::npos || !count)
      return {.wrong = line};
    if (std::find(names.begin(), names.end(), host) != names.end()) slots += *count;
  }
  return {.slots = slots};
}

std::vector<std::string> names_of_this_host() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  const std::string whole = name.data();
  std::vector<std::string> names{"localhost", "127.0.0.1", whole};
  const std::string first = whole.substr(0, whole.find('.'));
  if (first != whole) names.push_back(first);
  return names;
}

void Throughputs::add(int ranks, double rate, Time now) {
  if (ranks < 1 || rate <= 0) return;
  if (ranks != ranks_) {
    ranks_ = ranks;
    since_ = now;
    sum_ = 0;
    count_ = 0;
  }
  if (now - since_ < kSettle) return;
  sum_ += rate;
  ++count_;
  if (now - since_ < kSettle + kMeasure) return;
  measured_[ranks] = {sum_ / count_ / ranks, now};
  since_ = now - kSettle;  // the next measurement begins
  sum_ = 0;
  count_ = 0;
}

bool Throughputs::is_enough(int ranks, double least) const {
  const double factor = ranks == settled_ ? kMargin : 1;
  return measured_.at(ranks).per_rank >= factor * least;
}

std::optional<int> Throughputs::next(const Limits& limits, Time now) {
  const auto limited = [&](int ranks) { return std::clamp(ranks, limits.least, limits.most); };
  if (ranks_ == 0) return std::nullopt;
  if (limited(ranks_) != ranks_) return limited(ranks_);
  if (!measured_.contains(ranks_) || limits.least == limits.most) return std::nullopt;
  double best = 0;
  for (const auto& [ranks, one] : measured_) best = std::max(best, one.per_rank);
  const double least = limits.efficiency * best;
  std::erase_if(measured_, [&](const auto& one) {
    return one.first != ranks_ && !is_enough(one.first, least) && now - one.second.when >= kForget;
  });
  // One number tells nothing. The fewest ranks have the best throughput per rank.
  if (measured_.size() == 1) return ranks_ == limits.least ? limited(2 * ranks_) : limits.least;
  int enough = 0, too_many = limits.most + 1;
  for (const auto& [ranks, one] : measured_) {
    if (!is_enough(ranks, least)) {
      too_many = std::min(too_many, ranks);
    } else if (ranks < too_many && ranks <= limits.most) {
      enough = ranks;
    }
  }
  const int middle = too_many > limits.most ? limits.most : (enough + too_many) / 2;
  const int target = limited(std::max(enough, middle));
  if (target != ranks_) return target;
  settled_ = ranks_;
  return std::nullopt;
}

}  // namespace weft::launch::internal

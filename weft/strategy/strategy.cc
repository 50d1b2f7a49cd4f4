#include "weft/strategy/strategy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/text/numbers.h"
#include "weft/base/text/words.h"
#include "weft/compress/server_codecs.h"
#include "weft/compress/spec.h"
#include "weft/schedule/gossip.h"
#include "weft/strategy/internal/flat_rule.h"

namespace weft::strategy {
namespace {

using MakeRule = std::unique_ptr<Rule> (*)(const Strategy&, Part);

struct Entry {
  const char* name;
  MakeRule make;
  std::int64_t period;
  const char* what;  // "N workers <what> every P steps"
};
constexpr Entry kEntries[] = {
    {"sync", internal::backup, 1, "add the changes of those that are ready first to a center"},
    {"local_sgd", internal::local_sgd, 16, "average their weights"},
    {"slow_momentum", internal::slow_momentum, 16, "make a step with momentum to their mean"},
    {"diloco", internal::diloco, 100, "make an outer step by their changes"},
    {"easgd", internal::easgd, 8, "are pulled to a center"},
    {"gossip", internal::gossip, 1, "average their weights with neighbors"},
    {"downpour", internal::downpour, 1, "add their changes to a shared center"},
    {"easgd_async", internal::easgd_async, 8,
     "exchange with a shared center, each at its own time,"},
    {"ad_psgd", internal::ad_psgd, 1, "average with a random neighbor, each at its own time,"},
};

const Entry& entry_of(const std::string& name) {
  const auto* const found = std::find_if(std::begin(kEntries), std::end(kEntries),
                                         [&](const Entry& entry) { return name == entry.name; });
  if (found != std::end(kEntries)) return *found;
  throw Error(Errc::kBadConfig, "strategy.name = \"" + name +
                                    "\": there is no such strategy; there are " + joined(names()));
}

std::string number(double value) { return formatted("%.3g", value); }

[[noreturn]] void refuse(const std::string& what) { throw Error(Errc::kBadConfig, what); }

bool has_center(const Strategy& strategy) {
  return strategy.name == "downpour" || strategy.name == "easgd_async";
}

bool has_graph(const Strategy& strategy) {
  return strategy.name == "gossip" || strategy.name == "ad_psgd";
}

// Gossip sends differences to what the neighbors have, to the same neighbors in each round.
void check_gossip_codec(const Strategy& strategy, const compress::Spec& spec, int workers) {
  if (spec.kind == compress::Kind::kPowerSgd)
    refuse("strategy.codec: powersgd needs the sum of all workers, which gossip does not make");
  if (spec.kind == compress::Kind::kRandomK && spec.memory == compress::Memory::kNone)
    refuse("strategy.codec: gossip sends the rest of randomk later, so leave out \"ef=off\"");
  if (spec.warmup > 0)
    refuse("strategy.codec: gossip has no steps without the codec, so leave out \"warmup\"");
  if (schedule::distinct_rounds({schedule::parse_graph(strategy.graph), workers}) > 1) {
    refuse("strategy.codec: a codec needs the same neighbors in each round, which the graph " +
           strategy.graph + " does not have; use ring, grid or exponential");
  }
  if (strategy.lr == 0 || strategy.lr > 1)
    refuse("strategy.lr = " + number(strategy.lr) +
           " must be above 0 and at most 1 for gossip with a codec; below 0: its default");
}

// A center on servers takes additions through a codec, and gives differences through it.
void check_center_codec(const std::string& codec) {
  try {
    compress::check_push_codec(codec);
    compress::check_difference_codec(codec);
  } catch (const Error& error) {
    refuse("strategy.codec: " + error.message());
  }
}

void check_codec(const Strategy& strategy, int workers) {
  compress::Spec spec;
  try {
    spec = compress::parse(strategy.codec);
  } catch (const Error& error) {
    refuse("strategy.codec: " + error.message());
  }
  if (spec.kind == compress::Kind::kNone) {
    if (strategy.name == "gossip" && strategy.lr >= 0)
      refuse("strategy.lr: gossip without a codec takes the mean as it is; leave it below 0");
    return;
  }
  if (is_asynchronous(strategy) && !has_center(strategy)) {
    refuse("strategy.codec: " + strategy.name +
           " exchanges weights as they are; leave it at \"none\"");
  }
  if (spec.kind == compress::Kind::kAuto)
    refuse("strategy.codec = \"auto\": name a codec, since exchanges are too rare to measure");
  if (strategy.name == "gossip") check_gossip_codec(strategy, spec, workers);
  if (has_center(strategy)) check_center_codec(strategy.codec);
}

std::int64_t period_of(const Strategy& strategy) {
  return strategy.period > 0 ? strategy.period : default_period(strategy.name);
}

std::string megabytes(double bytes) { return number(bytes / 1e6) + " MB"; }

// Bytes that a rank sends in an exchange without a codec, by the volume of an all-reduce. Of
// asynchronous rules: that it reads and writes of memory that others use too.
double bytes_of_exchange(const Strategy& strategy, int workers, double weights) {
  if (workers == 1) return 0;
  if (is_asynchronous(strategy)) return 8 * weights;
  if (strategy.name == "gossip") {
    const schedule::Gossip gossip{schedule::parse_graph(strategy.graph), workers};
    return 4 * weights * static_cast<double>(schedule::mixing(gossip, 0, 0).sends_to.size());
  }
  return 8 * weights * (workers - 1) / workers;
}

void check_backup(const Strategy& strategy, int workers) {
  if (strategy.backup == 0) return;
  if (strategy.name != "sync") refuse("strategy.backup is for sync; leave it at 0");
  if (strategy.backup < 0 || strategy.backup >= workers) {
    refuse("strategy.backup = " + std::to_string(strategy.backup) +
           " must be from 0 to one less than the workers, of which there are " +
           std::to_string(workers));
  }
  if (period_of(strategy) != 1)
    refuse("strategy.period: backup workers exchange after every step; leave it at 0");
}

void check_center(const Strategy& strategy, int workers) {
  if (strategy.staleness >= 0 && !has_center(strategy))
    refuse("strategy.staleness is for downpour and easgd_async; leave it below 0");
  if (strategy.adapt_steps > 0 && is_asynchronous(strategy)) {
    refuse("strategy.adapt_steps: " + strategy.name +
           " has no common loss to follow, since its workers do not meet; leave it at 0");
  }
  if (strategy.delay_compensation != 0) {
    if (strategy.name != "downpour")
      refuse("strategy.delay_compensation is for downpour; leave it at 0");
    if (!(strategy.delay_compensation > 0) || !std::isfinite(strategy.delay_compensation))
      refuse("strategy.delay_compensation = " + number(strategy.delay_compensation) +
             " must not be negative");
    if (period_of(strategy) != 1)
      refuse(
          "strategy.delay_compensation corrects the gradient of one step; set strategy.period "
          "to 1");
  }
  if (!strategy.name.starts_with("easgd")) return;
  if (!(strategy.beta > 0 && strategy.beta <= 1)) {
    refuse("strategy.beta = " + number(strategy.beta) +
           " must be in (0, 1]: beyond it the center overshoots the workers");
  }
  if (easgd_bound(strategy.beta, workers, has_center(strategy)) <= 0) {
    refuse("strategy.beta = " + number(strategy.beta) + " with " + std::to_string(workers) +
           " worker: the center and the worker change places, which is not stable at any learning "
           "rate; lower it");
  }
}

void check_graph(const Strategy& strategy) {
  if (!has_graph(strategy)) return;
  try {
    schedule::parse_graph(strategy.graph);
  } catch (const Error& error) {
    refuse("strategy.graph: " + error.message());
  }
}

// The period at which local SGD lets its workers drift as far apart as elastic averaging does. An
// exchange leaves q = (1 - alpha)^2 of the squared distance from the mean, and a step adds s. The
// mean over a period is then s (period q / (1 - q) + (period + 1) / 2), which is that of local SGD,
// s (P + 1) / 2, for P = period (1 + q) / (1 - q).
double drift_period(double beta, int workers, std::int64_t period) {
  const double left = 1 - beta / workers, q = left * left;
  return static_cast<double>(period) * (1 + q) / (1 - q);
}

// What describe() says at the end about a rule with one of these properties.
std::string properties_of(const Strategy& strategy, int workers) {
  std::string text;
  if (strategy.backup > 0) {
    text += ", and as much for each array of optimizer state; a step takes the first " +
            std::to_string(workers - strategy.backup) + " of " + std::to_string(workers);
  } else if (is_asynchronous(strategy)) {
    text += strategy.staleness < 0 ? "; nobody waits"
                                   : "; a worker waits if the slowest one is more than " +
                                         std::to_string(strategy.staleness) + " exchanges behind";
  }
  if (strategy.name.starts_with("easgd")) {
    const double bound = easgd_bound(strategy.beta, workers, has_center(strategy));
    text += "; stable while learning rate times curvature is below " + number(bound);
    if (workers > 1)
      text += "; workers drift apart as with local_sgd every " +
              number(drift_period(strategy.beta, workers, period_of(strategy))) + " steps";
  }
  if (has_graph(strategy) && workers > 1) {
    const schedule::Gossip gossip{schedule::parse_graph(strategy.graph), workers};
    const double rate = strategy.name == "gossip" ? schedule::mixing_rate(gossip)
                                                  : pairwise_mixing_rate(strategy.graph, workers);
    text += "; mixing rate of the graph " + strategy.graph + ": " + number(rate);
  }
  return text;
}

}  // namespace

std::span<const char* const> names() {
  static constexpr auto kNames = [] {
    std::array<const char*, std::size(kEntries)> all{};
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = kEntries[i].name;
    return all;
  }();
  return kNames;
}

std::int64_t default_period(const std::string& name) { return entry_of(name).period; }

bool is_asynchronous(const Strategy& strategy) {
  return has_center(strategy) || strategy.name == "ad_psgd" || strategy.backup > 0;
}

// The mean of the workers and the center, by equations 5 and 6: eigenvalues 1 - m with
//   m^2 - a m + c^2 = 0,   a = h + (workers + 1) alpha,   c^2 = h workers alpha
// for h = learning rate * curvature. Both are above -1 while 2 a - c^2 < 4. The distance of a
// worker from the mean shrinks by 1 - h - alpha. In turn instead of together (asynchronous), the
// paper's bound is alpha <= (4 - 2 h) / (4 - h).
double easgd_bound(double beta, int workers, bool asynchronous) {
  const double alpha = beta / workers;
  if (asynchronous) return 4 * (1 - alpha) / (2 - alpha);
  return std::min((4 - 2 * (beta + alpha)) / (2 - beta), 2 - alpha);
}

void check(const Strategy& strategy, int workers) {
  const std::string& name = entry_of(strategy.name).name;
  WEFT_REQUIRE(workers >= 1, "a strategy needs a worker");
  check_backup(strategy, workers);
  if (!exchanges_weights(strategy)) return;
  if (strategy.period < 0 || strategy.sync_steps < 0 || strategy.adapt_steps < 0)
    refuse("strategy.period, strategy.sync_steps and strategy.adapt_steps must not be negative");
  if (strategy.adapt_steps > 0 && name == "diloco")
    refuse("strategy.adapt_steps: the period of diloco stays; leave it at 0");
  if (strategy.momentum >= 1)
    refuse("strategy.momentum = " + number(strategy.momentum) + " must be below 1");
  check_center(strategy, workers);
  if (strategy.fragments < 1 || strategy.fragments > period_of(strategy))
    refuse("strategy.fragments = " + std::to_string(strategy.fragments) +
           " must be from 1 to the period, " + std::to_string(period_of(strategy)));
  if (strategy.fragments > 1 && name != "diloco")
    refuse("strategy.fragments is for diloco; leave it at 1");
  check_graph(strategy);
  check_codec(strategy, workers);
}

std::string describe(const Strategy& strategy, int workers, std::int64_t weights) {
  const Entry& entry = entry_of(strategy.name);
  const auto count = static_cast<double>(weights);
  const double bytes = bytes_of_exchange(strategy, workers, count);
  if (!exchanges_weights(strategy))
    return "sync: gradients are averaged at every step; a rank sends " + megabytes(bytes) +
           " a step";
  const std::int64_t period = period_of(strategy);
  std::string text =
      strategy.name + ": " + std::to_string(workers) + " workers " + entry.what +
      (period == 1 ? " after every step" : " every " + std::to_string(period) + " steps");
  const std::string moves = is_asynchronous(strategy) ? "reads and writes " : "sends ";
  text += "; a rank " + moves + megabytes(bytes) + " for it, " +
          megabytes(bytes / static_cast<double>(period)) + " a step";
  if (strategy.codec != "none") text += ", before " + strategy.codec;
  if (strategy.fragments > 1) text += ", in " + std::to_string(strategy.fragments) + " fragments";
  return text + properties_of(strategy, workers);
}

void Staleness::add(std::int64_t staleness) {
  const auto next = std::upper_bound(kFirst.begin(), kFirst.end(), staleness);
  ++counts[static_cast<std::size_t>(std::max<std::ptrdiff_t>(1, next - kFirst.begin()) - 1)];
  sum += staleness;
  largest = std::max(largest, staleness);
}

std::int64_t Staleness::exchanges() const {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

std::string Staleness::name_of(std::size_t bucket) {
  const std::string first = std::to_string(kFirst[bucket]);
  if (bucket + 1 == kFirst.size()) return first + "_up";
  const int last = kFirst[bucket + 1] - 1;
  return last == kFirst[bucket] ? first : first + "_" + std::to_string(last);
}

std::unique_ptr<Rule> make_rule(const Strategy& strategy, Part part) {
  check(strategy, part.workers.size());
  const Entry& entry = entry_of(strategy.name);
  WEFT_REQUIRE(exchanges_weights(strategy),
               "sync is no rule of its own: train one model with data parallelism");
  std::unique_ptr<Rule> rule = entry.make(strategy, std::move(part));
  rule->restart();
  return rule;
}

}  // namespace weft::strategy

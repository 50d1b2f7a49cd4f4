#include "weft/strategy/strategy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

#include "weft/base/error.h"
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
    {"sync", nullptr, 1, ""},
    {"local_sgd", internal::local_sgd, 16, "average their weights"},
    {"slow_momentum", internal::slow_momentum, 16, "make a step with momentum to their mean"},
    {"diloco", internal::diloco, 100, "make an outer step by their changes"},
    {"easgd", internal::easgd, 8, "are pulled to a center"},
    {"gossip", internal::gossip, 1, "average their weights with neighbors"},
    {"downpour", internal::downpour, 1, "add their changes to a shared center"},
    {"easgd_async", internal::easgd_async, 8,
     "exchange with a shared center, each at its own time,"},
};

const Entry& entry_of(const std::string& name) {
  const auto* const found = std::find_if(std::begin(kEntries), std::end(kEntries),
                                         [&](const Entry& entry) { return name == entry.name; });
  if (found != std::end(kEntries)) return *found;
  std::string known;
  for (const char* one : names()) known += (known.empty() ? "" : ", ") + std::string(one);
  throw Error(Errc::kBadConfig,
              "strategy.name = \"" + name + "\": there is no such strategy; there are " + known);
}

[[noreturn]] void refuse(const std::string& what) { throw Error(Errc::kBadConfig, what); }

bool has_center(const Strategy& strategy) {
  return strategy.name == "downpour" || strategy.name == "easgd_async";
}

void check_codec(const Strategy& strategy) {
  compress::Spec spec;
  try {
    spec = compress::parse(strategy.codec);
  } catch (const Error& error) {
    refuse("strategy.codec: " + error.message());
  }
  if (spec.kind == compress::Kind::kNone) return;
  if (strategy.name == "gossip" || has_center(strategy)) {
    refuse("strategy.codec: " + strategy.name +
           " exchanges weights as they are; leave it at \"none\"");
  }
  if (spec.kind == compress::Kind::kAuto)
    refuse("strategy.codec = \"auto\": name a codec, since exchanges are too rare to measure");
}

std::int64_t period_of(const Strategy& strategy) {
  return strategy.period > 0 ? strategy.period : default_period(strategy.name);
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

std::string megabytes(double bytes) { return number(bytes / 1e6) + " MB"; }

// Bytes that a rank sends in an exchange without a codec, by the volume of an all-reduce.
double bytes_of_exchange(const Strategy& strategy, int workers, double weights) {
  if (workers == 1 || has_center(strategy)) return 0;
  if (strategy.name == "gossip") {
    const schedule::Gossip gossip{schedule::parse_graph(strategy.graph), workers};
    return 4 * weights * static_cast<double>(schedule::mixing(gossip, 0, 0).sends_to.size());
  }
  return 8 * weights * (workers - 1) / workers;
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

void check(const Strategy& strategy, int workers) {
  const std::string& name = entry_of(strategy.name).name;
  if (!exchanges_weights(strategy)) return;
  if (strategy.period < 0 || strategy.sync_steps < 0 || strategy.adapt_steps < 0)
    refuse("strategy.period, strategy.sync_steps and strategy.adapt_steps must not be negative");
  if (strategy.adapt_steps > 0 && name == "diloco")
    refuse("strategy.adapt_steps: the period of diloco stays; leave it at 0");
  if (strategy.momentum >= 1)
    refuse("strategy.momentum = " + number(strategy.momentum) + " must be below 1");
  if (strategy.staleness >= 0 && !has_center(strategy))
    refuse("strategy.staleness is for downpour and easgd_async; leave it below 0");
  if (name.starts_with("easgd") && !(strategy.beta > 0 && strategy.beta <= 1)) {
    refuse("strategy.beta = " + number(strategy.beta) +
           " must be in (0, 1]: beyond it the center overshoots the workers");
  }
  if (strategy.fragments < 1 || strategy.fragments > period_of(strategy))
    refuse("strategy.fragments = " + std::to_string(strategy.fragments) +
           " must be from 1 to the period, " + std::to_string(period_of(strategy)));
  if (strategy.fragments > 1 && name != "diloco")
    refuse("strategy.fragments is for diloco; leave it at 1");
  if (name == "gossip") {
    try {
      schedule::parse_graph(strategy.graph);
    } catch (const Error& error) {
      refuse("strategy.graph: " + error.message());
    }
  }
  check_codec(strategy);
  WEFT_REQUIRE(workers >= 1, "a strategy needs a worker");
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
  if (has_center(strategy)) {
    const std::string bound = std::to_string(strategy.staleness);
    return text + (strategy.staleness < 0 ? "; nobody waits"
                                          : "; a worker waits if the slowest one is more than " +
                                                bound + " exchanges behind");
  }
  text += "; a rank sends " + megabytes(bytes) + " for it, " +
          megabytes(bytes / static_cast<double>(period)) + " a step";
  if (strategy.codec != "none") text += ", before " + strategy.codec;
  if (strategy.fragments > 1) text += ", in " + std::to_string(strategy.fragments) + " fragments";
  if (strategy.name == "gossip" && workers > 1) {
    const schedule::Gossip gossip{schedule::parse_graph(strategy.graph), workers};
    text += "; mixing rate of the graph " + strategy.graph + ": " +
            number(schedule::mixing_rate(gossip));
  }
  return text;
}

std::unique_ptr<Rule> make_rule(const Strategy& strategy, Part part) {
  check(strategy, part.workers.size());
  const Entry& entry = entry_of(strategy.name);
  WEFT_REQUIRE(entry.make != nullptr,
               "sync is no rule of its own: train one model with data parallelism");
  std::unique_ptr<Rule> rule = entry.make(strategy, std::move(part));
  rule->restart();
  return rule;
}

}  // namespace weft::strategy

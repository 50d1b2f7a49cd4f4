#include "weft/train/internal/planned_layout.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/base/json/json.h"
#include "weft/base/json/json_fields.h"
#include "weft/train/internal/plan_keys.h"

namespace weft::train::internal {
namespace {

// Times of layouts that a run shall not take without a gain, over those of the others.
constexpr double kBySpeed = 1.05, kCodec = 0.95, kNextCodec = 0.9;

}  // namespace

void use_measured(PlannedLayout& planned, const ProbedStep& real) {
  planned.seconds = real.seconds;
  planned.traffic = real.traffic;
  planned.is_tried = true;
  planned.parts = {real.seconds, real.data, real.compute, real.communication, real.update};
}

PlannedLayout best_of(const std::vector<PlannedLayout>& tried,
                      const std::vector<std::string>& codecs) {
  WEFT_CHECK(!tried.empty(), "no layout was tried");
  const auto cost = [](const PlannedLayout& one) {
    return one.seconds * (one.keys.find("balance = ") == std::string::npos ? 1 : kBySpeed);
  };
  // Position of the layout's codec in `codecs`. A codec that is not listed counts as no codec, 0.
  const auto place = [&](const PlannedLayout& one) {
    const auto at = std::find(codecs.begin(), codecs.end(), one.codec);
    return at == codecs.end() ? 0 : at - codecs.begin();
  };
  std::vector<const PlannedLayout*> order;
  for (const PlannedLayout& one : tried) order.push_back(&one);
  std::stable_sort(order.begin(), order.end(), [&](const auto* a, const auto* b) {
    return std::pair(place(*a), cost(*a)) < std::pair(place(*b), cost(*b));
  });
  const PlannedLayout* best = order.front();
  for (const PlannedLayout* one : order) {
    const double most = place(*one) == place(*best) ? 1 : place(*best) == 0 ? kCodec : kNextCodec;
    if (cost(*one) < most * cost(*best)) best = one;
  }
  return *best;
}

// All fields but the parts.
template <class Visit>
void each_field(PlannedLayout& o, Visit&& visit) {
  visit("layout", o.layout);
  visit("keys", o.keys);
  visit("codec", o.codec);
  visit("ranks", o.ranks);
  visit("step_s", o.seconds);
  visit("model_step_s", o.model_seconds);
  visit("memory", o.memory);
  visit("traffic", o.traffic);
  visit("tried", o.tried);
  visit("is_tried", o.is_tried);
}

std::string to_json(const PlannedLayout& planned) {
  const StepParts& parts = planned.parts;
  nlohmann::json json = fields_to_json(planned);
  json["parts"] = {parts.step, parts.data, parts.compute, parts.communication, parts.update};
  return json.dump();
}

PlannedLayout planned_layout(const std::string& json) {
  try {
    const nlohmann::json read = parse_json(json, "a planned layout", {.depth = 4});
    auto planned = fields_from_json<PlannedLayout>(read);
    const auto parts = read.at("parts").get<std::vector<double>>();
    planned.parts = {parts.at(0), parts.at(1), parts.at(2), parts.at(3), parts.at(4)};
    return planned;
  } catch (const std::exception& error) {
    throw Error(Errc::kInternal, std::string("not a planned layout: ") + error.what());
  }
}

ProbedStep try_out(const PlannedLayout& planned, const Task& task, Options options,
                   const Group& world, const ProbeOptions& how) {
  set_plan(options, planned.keys);
  return probe(task, options, world, how);
}

PlannedLayout all_replicas(int ranks) {
  return {.layout = "dp " + std::to_string(ranks), .keys = "[parallel]\ndp = 0\n", .ranks = ranks};
}

void set_plan(Options& options, const std::string& fragment) {
  const parallel::Plan defaults;
  Options plain = options;
  plain.mesh = "dp=0";
  plain.balance_by_speed = false;
  plain.plan.cuts.clear();
  plain.plan.micro_batches = 0;
  plain.plan.zero_stage = defaults.zero_stage;
  plain.plan.schedule = defaults.schedule;
  Config config = config_of(plain);
  set_plan_keys(config, fragment, "parallel.plan = \"auto\"");
  const Options planned = options_of(config);
  options.mesh = planned.mesh;
  options.balance_by_speed = options.balance_by_speed || planned.balance_by_speed;
  options.plan.codec = planned.plan.codec;
  options.plan.cuts = planned.plan.cuts;
  options.plan.micro_batches = planned.plan.micro_batches;
  options.plan.zero_stage = planned.plan.zero_stage;
  options.plan.schedule = planned.plan.schedule;
  options.plan.recompute = planned.plan.recompute;
}

}  // namespace weft::train::internal

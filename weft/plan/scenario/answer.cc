// Writes predicted steps as JSON.
#include <cmath>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/json/json.h"
#include "weft/plan/scenario/scenario.h"

namespace weft::plan {

using Json = nlohmann::ordered_json;

namespace {

// Numbers with six significant digits; null for what there is not.
Json rounded(double value, bool there = true) {
  if (!there || !std::isfinite(value)) return nullptr;
  if (value == 0) return 0;
  const double scale = std::pow(10, 5 - std::floor(std::log10(std::fabs(value))));
  return std::isfinite(scale) && scale > 0 ? std::round(value * scale) / scale : value;
}

Json parts_json(const Parts& p) {
  return {{"compute_s", rounded(p.compute)},     {"recompute_s", rounded(p.recompute)},
          {"bubble_s", rounded(p.bubble)},       {"tensor_s", rounded(p.tensor)},
          {"context_s", rounded(p.context)},     {"expert_s", rounded(p.expert)},
          {"pipeline_s", rounded(p.pipeline)},   {"sharding_s", rounded(p.sharding)},
          {"gradients_s", rounded(p.gradients)}, {"optimizer_s", rounded(p.optimizer)},
          {"other_s", rounded(p.other)}};
}

Json memory_json(const Memory& m) {
  Json memory = {{"weights_gib", rounded(m.weights / kGiB)},
                 {"gradients_gib", rounded(m.gradients / kGiB)},
                 {"optimizer_gib", rounded(m.optimizer / kGiB)},
                 {"activations_gib", rounded(m.activations / kGiB)},
                 {"transient_gib", rounded(m.transient / kGiB)},
                 {"fragmentation_gib", rounded(m.fragmentation / kGiB)},
                 {"context_gib", rounded(m.context / kGiB)}};
  if (m.mapped > 0) memory["mapped_gib"] = rounded(m.mapped / kGiB);
  return memory;
}

}  // namespace

Json answer_json(const Scenario& scenario, const Step& step) {
  const bool timed = step.seconds > 0;
  Json answer = Json::object();
  if (!scenario.id.empty()) answer["id"] = Json::parse(scenario.id);
  answer["step_s"] = rounded(step.seconds, timed);
  answer["tokens_per_s"] = rounded(step.tokens_per_s, timed && step.tokens_per_s > 0);
  answer["samples_per_s"] = rounded(step.samples_per_s, timed);
  answer["tflops_per_device"] = rounded(step.flops_per_device / 1e12, timed);
  answer["mfu"] = rounded(step.mfu, timed);
  const Memory& peak = step.peak();
  const bool process = scenario.job.software.reports_context;
  answer["memory_gib"] = rounded((process ? peak.resident() : peak.allocated()) / kGiB);
  answer["traffic_gib"] = rounded(step.traffic / kGiB, timed);
  answer["fits"] = step.fits;
  if (!step.fits) answer["short_by_gib"] = rounded(step.short_by / kGiB);
  answer["parts"] = parts_json(step.parts);
  answer["memory"] = memory_json(peak);
  answer["notes"] = scenario.notes;
  return answer;
}

Answer answer_line(std::string_view line, const std::string& name) {
  try {
    const Scenario scenario = parse_scenario(line, name);
    const Json answer = answer_json(scenario, simulate_step(scenario.job));
    return {answer.dump(-1, ' ', false, Json::error_handler_t::replace), ""};
  } catch (const Error& error) {
    return {json_line({{"error", error.message()}}), error.message()};
  }
}

}  // namespace weft::plan

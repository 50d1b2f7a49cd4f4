// Scenarios: a model, a cluster and a plan in one line of JSON, and the predicted step as one line
// of JSON (weft plan predict).
//
//   {"model": {"family": "gpt", "layers": 96, "hidden": 12288, "sequence": 2048},
//    "cluster": {"system": "Selene DGX A100", "nodes": 8},
//    "plan": {"tp": 8, "pp": 8, "micro_batch": 1, "global_batch": 64, "recompute": "full"}}
//
// Missing fields get defaults: the family's best-known member for the model; for the cluster, 8
// devices a node and as many nodes as the plan needs; in the plan, 1 for sizes, all other ranks for
// dp, four micro-batches for each stage, 16-bit precision where the device has matrix units for it,
// and the software that was measured on the system. docs/planning-reference.md lists all of them. A
// field that is not known is ignored, and the answer's notes say so. null counts as missing.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "weft/plan/step/step.h"

namespace weft::plan {

struct Scenario {
  Job job;
  std::string id;                  // JSON of the line's "id" or "name"; empty: none.
  std::vector<std::string> notes;  // What was assumed or ignored.
};

// Reads one line. `name` stands for the line in messages. A cluster {"file": PATH} and a model's
// "profile" are loaded from their files. Throws Error(kCorrupt) for text that is not a JSON object;
// Error(kInvalidArgument), naming the field, for wrong types, negative and absurd values, and axes
// that do not multiply to the world; what load_cluster() and load_profile() throw.
Scenario parse_scenario(std::string_view line, const std::string& name);

// The answer as JSON: step_s, tokens_per_s, samples_per_s, tflops_per_device, mfu,
// memory_gib, fits, parts (seconds), memory (GiB), notes. null where there is no such number.
nlohmann::ordered_json answer_json(const Scenario& scenario, const Step& step);

// Answers one line: parse, simulate, print. An error becomes {"error": …}.
struct Answer {
  std::string json;
  std::string error;  // Empty: the line was answered.
};
Answer answer_line(std::string_view line, const std::string& name);

// Software that a scenario gets if it names none.
std::string default_software(const Model& model, const Cluster& cluster, const Layout& layout);

}  // namespace weft::plan

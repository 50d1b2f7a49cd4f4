// Performance summary of Megatron-Bridge (NVIDIA NeMo): Megatron-Core on Hopper and Blackwell.
#include <algorithm>

#include "bench/plan_tables/internal/adapters.h"

namespace weft::plan::tables::internal {
namespace {

bool says(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

int or_one(const CsvRow& r, const char* column) {
  return r.has(column) ? std::max(1, r.whole(column)) : 1;
}

// Devices of an NVLink domain that a run uses: 64 of a rack's 72.
Json bridge_cluster(const std::string& system, int devices) {
  const bool rack = says(system, "GB200") || says(system, "GB300");
  const int domain = rack ? 64 : 8, per_node = std::min(domain, devices);
  const char* accelerator = says(system, "GB300")   ? "GB300 (per GPU)"
                            : says(system, "GB200") ? "GB200 (per GPU)"
                            : says(system, "B300")  ? "B300 SXM"
                            : says(system, "B200")  ? "B200 SXM"
                            : says(system, "H200")  ? "H200 SXM 141GB"
                                                    : "H100 SXM 80GB";
  return {{"accelerator", accelerator}, {"nodes", devices / per_node}, {"per_node", per_node}};
}

// Empty: not modeled.
Json bridge_model(const std::string& name) {
  for (const auto& [part, model] : {std::pair{"405B", "llama3.1 405b"},
                                    {"LLAMA3_70B", "llama3 70b"},
                                    {"LLAMA3_8B", "llama3 8b"},
                                    {"Qwen3_30B", "qwen3 30b-a3b"},
                                    {"Qwen3_235B", "qwen3 235b-a22b"},
                                    {"GPT OSS 120B", "gpt-oss 120b"},
                                    {"DeepSeekV3", "deepseek v3"},
                                    {"Kimi_K2", "kimi k2"},
                                    {"Nemotron_3_Nano", "nemotron 3 nano"},
                                    {"Nemotron_3_Super", "nemotron 3 super"}}) {
    if (says(name, part)) return {{"name", model}};
  }
  return nullptr;
}

// What the recipes of a release set and the table does not say (scripts/performance/configs of
// Megatron-Bridge: *_workload_base_configs.py).
void add_recipe(const CsvRow& r, Json& plan) {
  const std::string &release = r.text("nemo_container_release"), &name = r.text("model"),
                    &system = r.text("system");
  const bool rack = says(system, "GB"), hopper = says(system, "H100");
  const bool nemotron = says(name, "Nemotron"), deepseek = says(name, "DeepSeek"),
             large = says(name, "Qwen3_235B"), oss = says(name, "GPT OSS"),
             latent = deepseek || says(name, "Kimi");
  const bool recent = release >= "26.06" && says(r.text("precision"), "MXFP8") && !nemotron &&
                      !(latent && r.whole("micro_batch_size") > 1);
  const int pp = or_one(r, "pipeline_parallel"), ep = or_one(r, "expert_parallel");
  const bool intra = !rack && ((large) || (deepseek && pp > 8) || (oss && ep == 8));
  const bool first = (says(name, "Qwen3_30B") && r.whole("micro_batch_size") == 1) ||
                     // They recompute activations instead.
                     (oss && says(system, "GB200"));
  plan["cuda_graphs"] = recent ? "full" : intra || hopper || first ? "none" : "partial";
  plan["overlap_experts"] = recent || (hopper && large) ||
                            (deepseek && says(system, "B200") && !rack && ep == 32) ||
                            (oss && says(system, "GB200"));
  plan["tokens_once"] = !(!rack && (large || oss));
  if (latent) plan["recompute"] = recent && says(system, "GB300") ? "none" : "selective";
  if (nemotron && (hopper || (says(name, "Super") && says(system, "GB200")))) {
    plan["recompute"] = "selective";
    plan["selective"] = "experts";
  }
}

}  // namespace

void bridge_row(const CsvRow& r, Builder& b) {
  const std::string& name = r.text("model");
  if (!r.has("tokens_per_s_per_gpu")) return b.skip(1, "no throughput");
  Json model = bridge_model(name);
  if (model.is_null()) return b.skip(1, "layers of " + name + " that are not modeled");
  const int devices = r.whole("gpus"), tp = or_one(r, "tensor_parallel"),
            pp = or_one(r, "pipeline_parallel"), cp = or_one(r, "context_parallel"),
            data = devices / (tp * pp * cp),
            // Experts are divided over the ranks of tp, too.
      ep = std::max(1, std::min(data, or_one(r, "expert_parallel") / tp)),
            batch = r.whole("global_batch_size_sequences");
  const bool sharded = r.has("fsdp_shard_group") && r.whole("fsdp_shard_group") > 0;
  model["sequence"] = r.whole("seq_len_tokens");
  if (says(name, "w/o MTP")) model["predicts"] = 0;
  if (says(r.text("section"), "LoRA")) model["adapter"] = 32;
  Json plan = {{"tp", tp},
               {"pp", pp},
               {"cp", cp},
               {"ep", ep},
               {sharded ? "fsdp" : "dp", data},
               {"zero_stage", sharded ? 3 : 1},
               {"micro_batch", r.whole("micro_batch_size")},
               {"global_batch", batch},
               {"precision", r.text("precision")},
               {"software", "megatron"}};
  // Where a row does not name them, the recipes' own.
  if (r.has("virtual_pipeline")) plan["virtual_stages"] = or_one(r, "virtual_pipeline");
  if (!says(name, "LLAMA")) add_recipe(r, plan);
  const double tokens = batch * r.number("seq_len_tokens");
  b.add(r.text("nemo_container_release") + ", " + name + ", " + r.text("gpus") + " " +
            r.text("system") + ", " + r.text("precision").substr(0, 6),
        {{"model", model}, {"cluster", bridge_cluster(r.text("system"), devices)}, {"plan", plan}},
        Quantity::kSeconds, tokens / (r.number("tokens_per_s_per_gpu") * devices));
}

}  // namespace weft::plan::tables::internal

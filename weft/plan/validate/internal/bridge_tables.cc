// Performance summary of Megatron-Bridge (NVIDIA NeMo): Megatron-Core on Hopper and Blackwell.
#include <algorithm>

#include "weft/plan/validate/internal/adapters.h"

namespace weft::plan::internal {
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

// Shapes from the models' published configurations. Empty: not modeled.
Json bridge_model(const std::string& name) {
  const auto experts = [](int layers, int hidden, int ffn, int heads, int kv, int width, int top_k,
                          int vocab) {
    return Json{{"family", "llama"}, {"layers", layers}, {"hidden", hidden},    {"ffn", ffn},
                {"heads", heads},    {"kv_heads", kv},   {"head_width", width}, {"experts", 128},
                {"top_k", top_k},    {"vocab", vocab},   {"tied", false}};
  };
  if (says(name, "405B")) return {{"name", "llama3.1 405b"}};
  if (says(name, "LLAMA3") && says(name, "70B")) return {{"name", "llama3 70b"}};
  if (says(name, "LLAMA3") && says(name, "8B")) return {{"name", "llama3 8b"}};
  if (says(name, "Qwen3_30B")) return experts(48, 2048, 768, 32, 4, 128, 8, 151936);
  if (says(name, "Qwen3_235B")) return experts(94, 4096, 1536, 64, 4, 128, 8, 151936);
  if (says(name, "GPT OSS 120B")) return experts(36, 2880, 2880, 64, 8, 64, 4, 201088);
  return nullptr;
}

}  // namespace

void bridge_row(const CsvRow& r, Builder& b) {
  const std::string& name = r.text("model");
  if (says(r.text("section"), "LoRA"))
    return b.skip(1, "LoRA: steps with frozen weights are not modeled");
  if (!r.has("tokens_per_s_per_gpu")) return b.skip(1, "no throughput");
  Json model = bridge_model(name);
  if (model.is_null()) return b.skip(1, "layers of " + name + " that are not modeled");
  const int devices = r.whole("gpus"), tp = or_one(r, "tensor_parallel"),
            pp = or_one(r, "pipeline_parallel"), cp = or_one(r, "context_parallel"),
            data = devices / (tp * pp * cp),
            // Experts over the ranks of tp, too, count as divided by tp.
      ep = std::min(data, or_one(r, "expert_parallel")),
            batch = r.whole("global_batch_size_sequences");
  const bool sharded = r.has("fsdp_shard_group") && r.whole("fsdp_shard_group") > 0;
  model["sequence"] = r.whole("seq_len_tokens");
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
  const double tokens = batch * r.number("seq_len_tokens");
  Case& one = b.add(
      r.text("nemo_container_release") + ", " + name + ", " + r.text("gpus") + " " +
          r.text("system") + ", " + r.text("precision").substr(0, 6),
      {{"model", model}, {"cluster", bridge_cluster(r.text("system"), devices)}, {"plan", plan}},
      Quantity::kSeconds, tokens / (r.number("tokens_per_s_per_gpu") * devices));
  // Full CUDA graphs and fused products of experts came with release 26.06.
  if (model.contains("experts") && r.text("nemo_container_release") < "26.06")
    one.exception =
        "mixtures of experts before release 26.06 wait for the host: the rows do not name their "
        "CUDA graphs";
}

}  // namespace weft::plan::internal

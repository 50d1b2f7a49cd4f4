// Tables of Megatron-LM and of runs with it: SC21, activation recomputation, README of 2020, large
// runs, BLOOM's tuning.
#include <cmath>

#include "bench/plan_tables/internal/adapters.h"

namespace weft::plan::tables::internal {
namespace {

Gpt gpt_of(const CsvRow& r) {
  return {r.whole("layers"), r.whole("hidden_size"), r.whole("attention_heads")};
}

Json megatron_plan(const CsvRow& r) {
  return {{"dp", r.whole("data_parallel")},
          {"tp", r.whole("tensor_parallel")},
          {"pp", r.whole("pipeline_parallel")},
          {"micro_batch", r.whole("micro_batch_size")},
          {"global_batch", r.whole("global_batch_size_sequences")},
          {"precision", "fp16"}};
}

Json selene(int devices) {
  return {{"system", "Selene DGX A100"}, {"nodes", std::max(1, devices / 8)}};
}

}  // namespace

void sc21_row(const CsvRow& r, Builder& b) {
  Json plan = megatron_plan(r);
  plan["virtual_stages"] = r.whole("virtual_stages_per_pipeline_rank");
  plan["recompute"] = "full";
  b.add(r.text("model") + ", " + r.text("gpus") + " GPUs",
        {{"model", gpt_json(gpt_of(r))}, {"cluster", selene(r.whole("gpus"))}, {"plan", plan}},
        Quantity::kSeconds, r.number("derived_iteration_time_s"));
}

// One layer of a 22B model on 8 ranks of tensor parallelism, micro-batch 4: the difference between
// two models that differ by 8 layers.
void recompute_layer_row(const CsvRow& r, Builder& b) {
  (void)r;
  b.skip(1, "times of one layer: a unit test of weft/plan/step compares them");
}

void recompute_end_row(const CsvRow& r, Builder& b) {
  Json plan = megatron_plan(r);
  const std::string& how = r.text("configuration");
  plan["virtual_stages"] = r.whole("virtual_stages_per_pipeline_rank");
  const bool selective = how.find("selective") != std::string::npos;
  plan["recompute"] = selective ? "selective" : "full";
  plan["sequence_parallel"] = selective || (how.find("sequence parallel") != std::string::npos &&
                                            how.find("no sequence") == std::string::npos);
  const Gpt gpt = gpt_of(r);
  const Json scenario = {
      {"model", gpt_json(gpt)}, {"cluster", selene(r.whole("gpus"))}, {"plan", plan}};
  double seconds = 0;
  if (r.has("iteration_time_s")) {
    seconds = r.number("iteration_time_s");
  } else if (r.has("mfu_percent")) {
    // 72 B s l h^2 (1 + s/6h + V/12lh) over the devices' peak of 312 TFLOP/s.
    const double l = gpt.layers, h = gpt.hidden, s = gpt.sequence, v = gpt.vocab;
    const double flops = 72 * r.number("global_batch_size_sequences") * s * l * h * h *
                         (1 + s / (6 * h) + v / (12 * l * h));
    seconds = flops / (r.number("mfu_percent") / 100 * 312e12 * r.number("gpus"));
  } else {
    return b.skip(1, "neither time nor MFU");
  }
  b.add(r.text("model") + ", " + how, scenario, Quantity::kSeconds, seconds).group =
      r.text("model") + r.text("gpus");
}

void readme_2020_row(const CsvRow& r, Builder& b) {
  const bool volta = r.text("system").find("V100") != std::string::npos;
  const int devices = r.whole("gpus");
  Gpt gpt = gpt_of(r);
  gpt.sequence = 1024;
  const Json cluster = volta ? Json{{"system", "DGX-2"}, {"nodes", 1}, {"per_node", devices}}
                             : Json{{"system", "DGX A100"},
                                    {"accelerator", "A100 SXM 40GB"},
                                    {"nodes", std::max(1, devices / 8)},
                                    {"per_node", std::min(8, devices)}};
  const int dp = r.whole("data_parallel"), batch = r.whole("global_batch_size_sequences");
  const Json plan = {{"dp", dp},
                     {"tp", r.whole("tensor_parallel")},
                     {"micro_batch", batch / dp},
                     {"global_batch", batch},
                     {"recompute", "full"},
                     {"precision", "fp16"},
                     {"software", "megatron_2020"}};
  b.add(r.text("system") + ", " + r.text("model"),
        {{"model", gpt_json(gpt)}, {"cluster", cluster}, {"plan", plan}}, Quantity::kSeconds,
        r.number("iteration_time_ms") / 1e3);
}

// Megatron-Core r0.8.0 (the README's scripts of 2024): distributed optimizer, overlapped reductions
// and gathers, interleaved stages where there are several, sequence parallelism, no recomputation.
void h100_2024_row(const CsvRow& r, Builder& b) {
  const int devices = r.whole("gpus"), tp = r.whole("tensor_parallel"),
            pp = r.whole("pipeline_parallel"), dp = r.whole("data_parallel"),
            layers = r.whole("layers"), batch = r.whole("global_batch_size_sequences");
  Gpt gpt = {layers, r.whole("hidden_size"), r.whole("attention_heads"), r.whole("vocab_size"),
             r.whole("seq_len_tokens")};
  Json model = gpt_json(gpt);
  model["tied"] = false;
  model["dropout"] = 0;
  const Json plan = {{"dp", dp},
                     {"tp", tp},
                     {"pp", pp},
                     {"micro_batch", 1},
                     {"global_batch", batch},
                     {"zero_stage", 1},
                     {"sequence_parallel", tp > 1},
                     {"precision", "bf16"},
                     {"software", "megatron"}};
  const double l = gpt.layers, h = gpt.hidden, s = gpt.sequence, v = gpt.vocab;
  // Its count of operations: 72 B s l h^2 (1 + s/6h + V/12lh).
  const double flops = 72 * batch * s * l * h * h * (1 + s / (6 * h) + v / (12 * l * h));
  b.add(r.text("table") + ", " + r.text("model") + ", " + r.text("gpus") + " GPUs",
        {{"model", model},
         {"cluster", {{"accelerator", "H100 SXM 80GB"}, {"nodes", devices / 8}, {"per_node", 8}}},
         {"plan", plan}},
        Quantity::kSeconds, flops / (r.number("tflops_per_gpu") * 1e12 * devices))
      .group = r.text("table") + r.text("model");
}

void large_runs_row(const CsvRow& r, Builder& b) {
  const int devices = r.whole("gpus"), dp = r.whole("data_parallel"),
            pp = r.whole("pipeline_parallel");
  if (r.text("run").find("MT-NLG") != std::string::npos) {
    const Json plan = {{"dp", dp},
                       {"tp", 8},
                       {"pp", pp},
                       {"micro_batch", 1},
                       {"global_batch", 1920},
                       {"recompute", "full"},
                       {"precision", "bf16"},
                       {"software", "megatron_deepspeed"}};
    b.add("MT-NLG 530B, " + r.text("gpus") + " GPUs",
          {{"model", gpt_json({105, 20480, 128})}, {"cluster", selene(devices)}, {"plan", plan}},
          Quantity::kSeconds, r.number("iteration_time_s"))
        .group = "MT-NLG";
    return;
  }
  // Llama 3: TFLOP/s of each GPU by 6 N for each token, and attention counted in full.
  const double sequence = r.number("seq_len_tokens"),
               samples = dp * r.number("batch_per_dp_group_sequences");
  const Json model = {{"family", "llama"}, {"layers", 126},       {"hidden", 16384},
                      {"ffn", 53248},      {"heads", 128},        {"kv_heads", 8},
                      {"vocab", 128256},   {"sequence", sequence}};
  // One layer for each virtual stage. The first one has only the embedding, the last one only the
  // output layer (Llama 3 paper, section 3.3.2).
  constexpr int kLayers = 126, stages = kLayers + 2;
  Json cuts = Json::array();
  for (int block = 1; block < stages; ++block) cuts.push_back(block);
  const Json plan = {{"fsdp", dp},
                     {"tp", r.whole("tensor_parallel")},
                     {"pp", pp},
                     {"cp", r.whole("context_parallel")},
                     {"zero_stage", 2},
                     {"micro_batch", 1},
                     {"global_batch", samples},
                     {"virtual_stages", stages / pp},
                     {"cuts", cuts},
                     {"async_p2p", true},
                     {"precision", "bf16"},
                     {"sequence_parallel", true}};
  const double flops =
      samples * (6 * 405.8e9 * sequence + 12 * 126.0 * 16384 * sequence * sequence);
  Case& one = b.add(r.text("run") + ", " + r.text("gpus") + " GPUs",
                    {{"model", model},
                     {"cluster", {{"system", "Meta Llama 3 cluster"}, {"nodes", devices / 8}}},
                     {"plan", plan}},
                    Quantity::kSeconds, flops / (r.number("tflops_per_gpu") * 1e12 * devices));
  one.group = "Llama 3";
}

void bloom_row(const CsvRow& r, Builder& b) {
  Gpt gpt = {r.whole("layers"), r.whole("hidden_size"), 0, 250880};
  if (r.has("attention_heads")) gpt.heads = r.whole("attention_heads");
  Json plan = megatron_plan(r);
  plan["zero_stage"] = r.whole("zero_stage");
  plan["recompute"] = "full";
  const Json scenario = {{"model", gpt_json(gpt)},
                         {"cluster", {{"system", "Jean Zay A100"}, {"nodes", r.whole("nodes")}}},
                         {"plan", plan}};
  const std::string label = "L" + r.text("layers") + " h" + r.text("hidden_size") + " a" +
                            r.text("attention_heads") + ", dp " + r.text("data_parallel") + " tp " +
                            r.text("tensor_parallel") + " pp " + r.text("pipeline_parallel") +
                            " mbs " + r.text("micro_batch_size") + ", GBS " +
                            r.text("global_batch_size_sequences");
  const bool out = r.text("out_of_memory") == "1";
  if (r.has("seconds_per_iteration") && !out) {
    // Layouts of one model are compared in their order.
    b.add(label, scenario, Quantity::kSeconds, r.number("seconds_per_iteration")).group =
        r.text("layers") + "x" + r.text("hidden_size") + "x" +
        r.text("global_batch_size_sequences") + "x" + r.text("nodes");
  }
  const bool moved =
      r.text("section").find("Rebalancing") != std::string::npos && r.whole("data_parallel") >= 8;
  if (r.has("max_gpu_memory_gb")) {
    Case& one =
        b.add(label + ", memory", scenario, Quantity::kMemory, r.number("max_gpu_memory_gb") * 1e9);
    if (moved) {
      one.exception =
          "the rows of 28 February with 8 or more replicas take half as much memory "
          "again as the same layouts two days before; the source gives no reason";
    }
  }
  b.add(label + ", fits", scenario, Quantity::kFits, out ? 0 : 1).exception =
      moved && out ? "as the memory of that day's rows" : "";
}

}  // namespace weft::plan::tables::internal

// Tables of nanotron, torchtitan and DLPerf.
#include <algorithm>
#include <cmath>

#include "bench/plan_tables/internal/adapters.h"
#include "weft/plan/cluster/cluster.h"

namespace weft::plan::tables::internal {
namespace {

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

Json llama(const std::string& name) {
  if (contains(name, "405B"))
    return {{"family", "llama"}, {"layers", 126}, {"hidden", 16384}, {"ffn", 53248},
            {"heads", 128},      {"kv_heads", 8}, {"vocab", 128256}};
  if (contains(name, "70B"))
    return {{"family", "llama"},
            {"layers", 80},
            {"hidden", 8192},
            {"ffn", 28672},
            {"heads", 64},
            {"kv_heads", 8},
            {"vocab", contains(name, "Llama 2") ? 32000 : 128256}};
  if (contains(name, "13B"))
    return {{"family", "llama"}, {"layers", 40},   {"hidden", 5120}, {"ffn", 13824},
            {"heads", 40},       {"kv_heads", 40}, {"vocab", 32000}};
  if (contains(name, "Llama 2 7B"))
    return {{"family", "llama"}, {"layers", 32},   {"hidden", 4096}, {"ffn", 11008},
            {"heads", 32},       {"kv_heads", 32}, {"vocab", 32000}};
  return {{"family", "llama"}, {"layers", 32},  {"hidden", 4096}, {"ffn", 14336},
          {"heads", 32},       {"kv_heads", 8}, {"vocab", 128256}};
}

}  // namespace

void nanotron_row(const CsvRow& r, Builder& b) {
  const int devices = r.whole("gpus");
  const Json model = {{"family", "llama"},
                      {"layers", r.whole("layers")},
                      {"hidden", r.whole("hidden_size")},
                      {"ffn", r.whole("ffn_size")},
                      {"heads", r.whole("attention_heads_and_kv_heads")},
                      {"kv_heads", r.whole("attention_heads_and_kv_heads")},
                      {"vocab", r.whole("vocab_size_tied")},
                      {"sequence", r.whole("seq_len_tokens")}};
  const Json plan = {{"dp", r.whole("data_parallel")},
                     {"tp", r.whole("tensor_parallel")},
                     {"pp", r.whole("pipeline_parallel")},
                     {"micro_batch", r.whole("micro_batch_size")},
                     {"global_batch", r.whole("global_batch_size_sequences")},
                     {"zero_stage", r.whole("zero_stage")},
                     {"schedule", r.text("pipeline_schedule")},
                     {"precision", "bf16"}};
  const Json scenario = {{"model", model},
                         {"cluster",
                          {{"accelerator", "H100 SXM 80GB"},
                           {"nodes", std::max(1, devices / 8)},
                           {"per_node", std::min(8, devices)}}},
                         {"plan", plan}};
  const std::string label = r.text("gpus") + " GPUs, dp " + r.text("data_parallel") + " tp " +
                            r.text("tensor_parallel") + " pp " + r.text("pipeline_parallel") +
                            " mbs " + r.text("micro_batch_size");
  Case& time = b.add(label, scenario, Quantity::kSeconds, r.number("step_time_ms") / 1e3);
  time.group = r.text("gpus");
  if (devices > 8 && r.whole("pipeline_parallel") > 1) {
    time.exception =
        "stages on several nodes: the rate of messages between these nodes is not "
        "published, and the rows imply rates from 0.3 to 1.3 GB/s";
  }
  if (r.has("peak_allocated_mib"))
    b.add(label + ", memory", scenario, Quantity::kMemory,
          r.number("peak_allocated_mib") * 1048576);
}

void torchtitan_row(const CsvRow& r, Builder& b) {
  const int devices = r.whole("gpus"), pp = r.whole("pipeline_parallel"),
            local = r.whole("local_batch_size"), batch = r.whole("global_batch_size");
  Json cluster = {{"system", "Grand Teton H100"}, {"nodes", std::max(1, devices / 8)}};
  if (contains(r.text("hardware"), "A100"))
    cluster = {{"system", "DGX A100"}, {"nodes", devices / 8}};
  if (contains(r.text("hardware"), "H200"))
    cluster = {{"accelerator", "H200 SXM 141GB"}, {"nodes", devices / 8}, {"per_node", 8}};
  Json model = llama(r.text("model"));
  model["sequence"] = r.whole("seq_len_tokens");
  const bool full = r.text("activation_checkpointing").rfind("full", 0) == 0;
  Json plan = {{"fsdp", r.whole("fsdp_or_dp_shard")},
               {"tp", r.whole("tensor_parallel")},
               {"pp", pp},
               {"cp", r.whole("context_parallel")},
               {"zero_stage", 3},
               {"micro_batch", std::max(1, local / pp)},
               {"global_batch", batch},
               {"recompute", full ? "full" : "selective"},
               {"precision", r.text("fp8") == "1" ? "fp8" : "bf16"},
               {"compile", r.text("compile") == "1"},
               {"async_tp", contains(r.text("techniques"), "AsyncTP")},
               // The loss is not compiled in the reports of 2024 (pytorch/torchtitan#755).
               {"compile_loss", contains(r.text("source"), "2025")},
               {"software", "torchtitan"}};
  // Every second layer in full: "2" is torchtitan's default of selective_ac_option.
  if (contains(r.text("activation_checkpointing"), "selective layer")) plan["selective"] = "layers";
  if (contains(r.text("schedule"), "nterleaved")) plan["virtual_stages"] = 2;
  const std::string label = r.text("model") + ", " + r.text("gpus") + " GPUs, " +
                            r.text("techniques") + ", s " + r.text("seq_len_tokens");
  const Json scenario = {{"model", model}, {"cluster", cluster}, {"plan", plan}};
  const double tokens = batch * r.number("seq_len_tokens");
  Case& one = b.add(label, scenario, Quantity::kSeconds,
                    tokens / (r.number("tokens_per_s_per_gpu") * devices));
  if (contains(r.text("techniques"), "rowwise"))
    one.exception = "row-wise scales of FP8 were slower than bf16 at that time";
  if (r.has("peak_memory_gib"))
    b.add(label + ", memory", scenario, Quantity::kMemory, r.number("peak_memory_gib") * kGiB);
}

void dlperf_gpt_row(const CsvRow& r, Builder& b) {
  const Gpt gpt = {r.whole("layers"), r.whole("hidden_size"), r.whole("attention_heads"),
                   r.whole("padded_vocab_size"), r.whole("seq_len_tokens")};
  const bool recompute = r.text("activation_checkpointing") == "1";
  const Json plan = {{"dp", r.whole("data_parallel")},
                     {"tp", r.whole("tensor_parallel")},
                     {"pp", r.whole("pipeline_parallel")},
                     {"micro_batch", r.whole("micro_batch_size")},
                     {"global_batch", r.whole("global_batch_size_sequences")},
                     {"recompute", recompute ? "full" : "none"},
                     {"precision", "fp16"}};
  const Json scenario = {{"model", gpt_json(gpt)},
                         {"cluster",
                          {{"system", "DLPerf cluster"},
                           {"nodes", r.whole("nodes")},
                           {"per_node", r.whole("gpus_per_node")}}},
                         {"plan", plan}};
  b.add(r.text("case"), scenario, Quantity::kSeconds, r.number("iteration_time_ms") / 1e3).group =
      r.text("gpus") + "x" + r.text("hidden_size") + "x" + r.text("global_batch_size_sequences");
  if (r.has("gpu_memory_used_mib"))
    b.add(r.text("case") + ", memory", scenario, Quantity::kMemory,
          r.number("gpu_memory_used_mib") * 1048576);
}

void dlperf_data_parallel_row(const CsvRow& r, Builder& b) {
  const bool images = contains(r.text("model"), "ResNet");
  const std::string& framework = r.text("framework");
  const char* software = contains(framework, "OneFlow")      ? "oneflow"
                         : contains(framework, "TensorFlow") ? "tensorflow"
                         : contains(framework, "MXNet")      ? "mxnet"
                         : contains(framework, "Paddle")     ? "paddle"
                                                             : "torch_ddp";
  const int devices = r.whole("gpus"), batch = r.whole("batch_size_per_gpu");
  const Json scenario = {{"model", {{"family", images ? "resnet50" : "bert"}}},
                         {"cluster",
                          {{"system", "DLPerf cluster"},
                           {"nodes", r.whole("nodes")},
                           {"per_node", r.whole("gpus_per_node")}}},
                         {"plan",
                          {{"dp", devices},
                           {"micro_batch", batch},
                           {"global_batch", devices * batch},
                           {"precision", r.text("precision")},
                           {"software", software}}}};
  Case& one =
      b.add(r.text("model") + " " + r.text("precision") + ", " + framework + ", " + r.text("gpus") +
                " GPUs, batch " + r.text("batch_size_per_gpu"),
            scenario, Quantity::kSeconds, devices * batch / r.number("throughput_samples_per_s"));
  const bool slow_tensorflow = !images && framework == "NGC TensorFlow 1.x" && devices > 1;
  if (slow_tensorflow || (framework == "TensorFlow 2.x" && devices > 1))
    one.exception = "TensorFlow without XLA does not scale beyond one device here";
  if (contains(framework, "Paddle") && devices > 8)
    one.exception = "PaddlePaddle 1.8 does not scale beyond one node here";
}

void dlperf_zero_row(const CsvRow& r, Builder& b) {
  const int devices = r.whole("gpus"), batch = r.whole("batch_size_per_gpu");
  const Json scenario = {{"model", gpt_json({12, 768, 12, 50304, 1024})},
                         {"cluster", {{"system", "DLPerf cluster"}, {"nodes", r.whole("nodes")}}},
                         {"plan",
                          {{"dp", devices},
                           {"zero_stage", r.whole("zero_stage")},
                           {"micro_batch", batch},
                           {"global_batch", devices * batch},
                           {"precision", "fp16"},
                           {"software", "megatron_2019"}}}};
  const std::string label = r.text("gpus") + " GPUs, ZeRO " + r.text("zero_stage");
  b.add(label, scenario, Quantity::kSeconds, devices * batch / r.number("throughput_samples_per_s"))
      .group = r.text("gpus");
  b.add(label + ", memory", scenario, Quantity::kMemory, r.number("gpu_memory_mb") * 1e6)
      .exception = "nvidia-smi shows the cache of PyTorch's allocator, which fills the device";
}

void deepspeed_misc_row(const CsvRow& r, Builder& b) {
  const std::string& what = r.text("experiment");
  const std::string& hardware = r.text("hardware");
  const bool large = contains(what, "BERT-Large");
  if (!large || r.text("metric") == "total time" || r.text("metric") == "compute")
    return b.skip(1, "claims without model, batch or layout");
  const bool fine = contains(what, "SQuAD");
  int batch = 64;
  if (const auto at = what.find("micro-batch "); at != std::string::npos)
    batch = std::stoi(what.substr(at + 12));
  const int sequence = fine ? 384 : contains(what, "seq 512") ? 512 : 128;
  if (!fine && sequence == 512) batch = 16;
  const bool deepspeed = !contains(what, "PyTorch");
  const Json model = {{"family", "bert"},
                      {"layers", 24},
                      {"hidden", 1024},
                      {"heads", 16},
                      {"sequence", sequence},
                      {"vocab", 30528},
                      {"max_predictions", fine              ? 1
                                          : sequence == 512 ? 80
                                                            : 20}};
  const char* device = contains(hardware, "16GB") ? "V100 SXM2 16GB" : "V100 SXM2/SXM3 32GB";
  const Json scenario = {{"model", model},
                         {"cluster", {{"accelerator", device}, {"nodes", 1}, {"per_node", 1}}},
                         {"plan",
                          {{"micro_batch", batch},
                           {"global_batch", batch},
                           {"precision", "fp16"},
                           {"software", deepspeed ? "deepspeed" : "torch_ddp"}}}};
  if (r.text("metric") == "out of memory") {
    b.add(what + ", fits", scenario, Quantity::kFits, 0);
    return;
  }
  b.add(what + ", " + hardware, scenario, Quantity::kSeconds, batch / r.number("value")).group =
      hardware;
  if (fine) b.add(what + ", " + hardware + ", fits", scenario, Quantity::kFits, 1);
}

}  // namespace weft::plan::tables::internal

// Tables of ZeRO and GPipe, and torchgpipe's throughput.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "bench/plan_tables/internal/adapters.h"
#include "weft/plan/step/step.h"

namespace weft::plan::tables::internal {
namespace {

// Unit of the last printed digit: 0.1 of "52.5".
double digit_of(const std::string& text) {
  const std::size_t point = text.find('.');
  return point == std::string::npos ? 1
                                    : std::pow(10.0, -static_cast<double>(text.size() - point - 1));
}

// A column of the table, in its spelling.
const std::string kThroughput = std::string("normali") + "sed_throughput";

// "(18,256)": layers and filters.
std::pair<int, int> pair_of(const std::string& text) {
  const std::size_t open = text.find('('), comma = text.find(',', open);
  if (open == std::string::npos || comma == std::string::npos) return {0, 0};
  return {std::atoi(text.c_str() + open + 1), std::atoi(text.c_str() + comma + 1)};
}

Json amoebanet(const std::string& text) {
  const auto [layers, filters] = pair_of(text);
  return {{"family", "amoebanet"}, {"layers", layers}, {"base", filters}};
}

// The stages of a balance such as "104;137", layers of each stage, as cuts between blocks.
// `layers`: of each block. A cut inside a block moves to its nearer end.
Json cuts_of(const std::string& balance, const std::vector<int>& layers) {
  Json cuts = Json::array();
  int sum = 0, block = 0, start = 0;
  for (std::size_t at = 0; at < balance.size();) {
    const std::size_t next = balance.find(';', at);
    if (next == std::string::npos) break;  // the last stage
    sum += std::atoi(balance.c_str() + at);
    const auto size = [&] { return layers[static_cast<std::size_t>(block)]; };
    while (block + 1 < static_cast<int>(layers.size()) && 2 * (sum - start) >= size()) {
      start += size();
      ++block;
    }
    cuts.push_back(block);
    at = next + 1;
  }
  return cuts;
}

// A model of torchgpipe's benchmarks, and the layers that each block has there.
struct Benchmark {
  Json model;
  std::vector<int> layers;
};

Benchmark benchmark_of(const std::string& name) {
  const auto has = [&](const char* word) { return name.find(word) != std::string::npos; };
  std::vector<int> layers;
  const auto add = [&](int times, const std::vector<int>& blocks) {
    for (int i = 0; i < times; ++i) layers.insert(layers.end(), blocks.begin(), blocks.end());
  };
  if (has("amoebanet")) {
    add(24, {1});
    return {amoebanet("(18,256)"), layers};
  }
  if (has("resnet101")) {
    add(1, {4});  // convolution, norm, activation, pool
    add(33, {11});
    add(1, {3});
    return {{{"family", "resnet101"}}, layers};
  }
  // U-Net: 5 convolutions of a level with dropout, norm and activation
  add(5, {4, 4, 4, 4, 4, 2});
  add(5, {4});
  add(5, {2, 4, 4, 4, 4, 4});
  add(1, {1});
  return {{{"family", "unet"}, {"convs", 5}, {"base", 64}}, layers};
}

// Bytes of a parameter at a ZeRO stage over n ranks, 16-bit Adam with float32 masters.
double bytes_of_parameter(int stage, double n) {
  const double weights = stage >= 3 ? 2 / n : 2, gradients = stage >= 2 ? 2 / n : 2,
               state = stage >= 1 ? 12 / n : 12;
  return weights + gradients + state;
}

}  // namespace

void zero_table1_row(const CsvRow& r, Builder& b) {
  const int n = r.whole("data_parallel");
  const Json scenario = {
      {"model", {{"parameters", r.number("parameters")}}},
      {"cluster", {{"accelerator", "V100 SXM2/SXM3 32GB"}, {"nodes", n}, {"per_node", 1}}},
      {"plan",
       {{"dp", n},
        {"zero_stage", r.whole("zero_stage")},
        {"global_batch", n},
        {"precision", "fp16"},
        {"software", "megatron"}}}};
  const std::string& printed = r.text("model_state_memory_gb_per_device");
  Case& one = b.add(r.text("model") + ", stage " + r.text("zero_stage") + ", " +
                        r.text("data_parallel") + " replicas",
                    scenario, Quantity::kFormula, r.number("model_state_memory_gb_per_device"));
  one.digit = digit_of(printed);
}

void zero_table2_row(const CsvRow& r, Builder& b) {
  if (r.text("kind") != "theoretical")
    return b.skip(1, "measured sizes: batch and hidden size of these models are not published");
  const std::string& how = r.text("partitioning");
  const int stage = how == "baseline" ? 0 : how == "P_os" ? 1 : how == "P_os+g" ? 2 : 3;
  const double mp = r.number("model_parallel"), n = r.number("gpus") / mp;
  const double largest = 32.0 / bytes_of_parameter(stage, n);
  const std::string& printed = r.text("max_params_billion");
  // The table multiplies the rounded figure of one model-parallel rank.
  b.formula("tp " + r.text("model_parallel") + ", " + how, largest * mp,
            r.number("max_params_billion"),
            std::max(digit_of(printed), 0.05 * mp + (stage == 3 ? 0.03 * largest * mp : 0)));
}

void gpipe_memory_row(const CsvRow& r, Builder& b) {
  const double parameters = r.number("parameters");
  // RMSProp: 12 bytes a parameter. The rows of AmoebaNet are in 10^9 bytes, the others in 2^30. The
  // numbers of parameters are rounded.
  const double unit = r.text("model") == "AmoebaNet-D" ? 1e9 : kGiB;
  Case& one = b.formula(r.text("model") + " " + r.text("experiment") + ", weights and state",
                        12 * parameters / unit, r.number("total_model_parameter_memory_gb"),
                        0.08 * r.number("total_model_parameter_memory_gb"));
  if (r.text("experiment") == "Naive-1" && r.text("model") != "AmoebaNet-D")
    one.exception = "11.7 GB as printed is no multiple of 282.2 million parameters";
  if (r.text("model") == "AmoebaNet-D" && r.text("experiment") == "Pipeline-8")
    one.exception = "24.62 GB as printed is 13.7 bytes a parameter, all other rows are 12";
}

void gpipe_throughput_row(const CsvRow& r, Builder& b) {
  const int k = r.whole("partitions_K"), m = r.whole("microbatches_M");
  const bool images = r.text("model").find("AmoebaNet") != std::string::npos;
  Json model = images ? amoebanet(r.text("model"))
                      : Json{{"family", "gpt"}, {"layers", 48},   {"hidden", 2048},
                             {"heads", 16},     {"vocab", 32000}, {"sequence", 1024}};
  if (r.text("model").find("Transformer-24") != std::string::npos) model["layers"] = 24;
  const bool p100 = r.text("hardware").find("P100") != std::string::npos;
  // Micro-batches of constant size: the mini-batch grows with M (section 3 of the paper).
  const int micro = images ? 16 : 1;
  const auto scenario_of = [&](int stages, int count) -> Json {
    const Json tpu = {
        {"system", "Cloud TPU v2"}, {"nodes", (stages + 3) / 4}, {"per_node", std::min(stages, 4)}};
    const Json gpu = {{"system", "GPipe P100 node"}, {"nodes", 1}, {"per_node", stages}};
    return {{"model", model},
            {"cluster", p100 ? gpu : tpu},
            {"plan",
             {{"pp", stages},
              {"schedule", "gpipe"},
              {"micro_batch", micro},
              {"global_batch", micro * count},
              {"recompute", "full"},
              {"precision", p100 ? "fp32" : "bf16"},
              {"software", "gpipe"}}}};
  };
  const Json scenario = scenario_of(k, m);
  Case& one =
      b.add(r.text("model") + ", K " + r.text("partitions_K") + ", M " + r.text("microbatches_M"),
            scenario, Quantity::kRatio, r.number(kThroughput));
  one.group = r.text("table") + r.text("model").substr(0, 11);
  one.unit = scenario_of(2, p100 ? m : 1).dump();
  if (!p100)
    one.exception =
        "the batch grows with K, by the memory of the accelerators, and the sizes are "
        "not published";
}

void torchgpipe_row(const CsvRow& r, Builder& b) {
  const std::string& what = r.text("benchmark");
  const bool speed = r.has("throughput_samples_per_s") && r.has("chunks_microbatches");
  if (!speed) return b.skip(1, "accuracy runs and memory without a batch size");
  const int devices = r.whole("gpus"), m = r.whole("chunks_microbatches"),
            batch = r.whole("batch_size");
  const Benchmark benchmark = benchmark_of(what);
  const bool baseline = r.text("checkpoint_mode") == "none";
  const Json cuts = cuts_of(r.text("balance_layers_per_stage"), benchmark.layers);
  Json plan = {{"pp", devices},
               {"schedule", "gpipe"},
               {"micro_batch", std::max(1, batch / m)},
               {"global_batch", batch / m * m},
               {"recompute", baseline ? "none" : "full"},
               {"precision", "fp32"},
               {"software", "torchgpipe"}};
  if (static_cast<int>(cuts.size()) == devices - 1) plan["cuts"] = cuts;
  const auto used = batch / m * m;  // samples: all micro-batches are of one size
  Case& one =
      b.add(what + " " + r.text("experiment") + ", " + r.text("gpus") + " GPUs",
            {{"model", benchmark.model},
             {"cluster", {{"system", "torchgpipe node"}, {"nodes", 1}, {"per_node", devices}}},
             {"plan", plan}},
            Quantity::kSeconds, static_cast<double>(used) / r.number("throughput_samples_per_s"));
  one.group = what;
  if (what == "unet-timeline" && r.text("experiment") != "dep-str-ptl")
    one.exception = "torchgpipe with parts of its optimizations switched off";
}

}  // namespace weft::plan::tables::internal

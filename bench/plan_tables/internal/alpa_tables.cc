// Tables of Alpa: weak scaling on one node (2021), and figure 8 of OSDI 2022.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "bench/plan_tables/internal/adapters.h"
#include "weft/plan/cluster/cluster.h"

namespace weft::plan::tables::internal {
namespace {

// The number behind a letter of "S1024 H2048 L24 heads16 V51200"; 0 if there is none.
int spec(const std::string& text, const std::string& name) {
  for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    const std::size_t digit = at + name.size();
    const bool begins = at == 0 || text[at - 1] == ' ';
    if (begins && digit < text.size() && std::isdigit(static_cast<unsigned char>(text[digit])) != 0)
      return std::atoi(text.c_str() + digit);
  }
  return 0;
}

// The number before a word: "128 micro-batches".
int number_before(const std::string& text, const std::string& word) {
  const std::size_t at = text.find(word);
  if (at == std::string::npos) return 0;
  std::size_t first = at;
  while (first > 0 &&
         (std::isdigit(static_cast<unsigned char>(text[first - 1])) != 0 || text[first - 1] == ' '))
    --first;
  return std::atoi(text.c_str() + first);
}

bool is(const std::string& family, const char* name) {
  std::string lower;
  for (const char c : family)
    if (c != '-') lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower == name;
}

Json model_of(const std::string& family, const std::string& text) {
  if (is(family, "wresnet"))
    return {{"family", "wresnet"},
            {"layers", 50},
            {"base", spec(text, "C")},
            {"factor", spec(text, "W")},
            {"image", spec(text, "I")}};
  Json model = gpt_json(
      {spec(text, "L"), spec(text, "H"), spec(text, "heads"), spec(text, "V"), spec(text, "S")});
  if (is(family, "moe")) {
    model["family"] = "moe";
    model["experts"] = spec(text, "E");
  }
  return model;
}

// Operations of a step as Alpa counts them (benchmark/util.py): for GPT with recomputation, for
// images and mixtures without.
double alpa_flops(const std::string& family, const std::string& text, double batch) {
  const double s = spec(text, "S"), h = spec(text, "H"), l = spec(text, "L"), v = spec(text, "V");
  if (is(family, "gpt")) return 96 * batch * s * l * h * h * (1 + s / (6 * h) + v / (16 * l * h));
  if (is(family, "moe")) {
    // Every second layer has top-2 experts of width 8 h, and a mask of 2 s places.
    const double attention = 8 * h * h + 4 * s * h, dense = 32 * h * h, mixture = 64 * h * h;
    const double forward = l * attention + l / 2 * (dense + mixture) + 2 * v * h;
    return 4 * batch * s * forward - 2 * batch * s * v * h;
  }
  return 0;
}

}  // namespace

void alpa_2021_row(const CsvRow& r, Builder& b) {
  const std::string& family = r.text("model_family");
  const std::string& text = r.text("model_spec");
  const std::string& method = r.text("method");
  const int devices = r.whole("gpus"), batch = spec(text, "B");
  const bool sharding = method == "alpa.auto_sharding", images = is(family, "wresnet");
  Json plan = {{"global_batch", batch}, {"precision", images ? "fp32" : "fp16"}};
  plan["micro_batch"] = std::max(1, batch / devices);
  if (sharding && is(family, "gpt")) {
    plan["tp"] = devices;
    plan["micro_batch"] = batch;
  } else if (sharding && is(family, "moe")) {
    plan["ep"] = devices;
  } else {
    plan["dp"] = devices;
    plan["zero_stage"] = sharding ? 3 : method == "alpa.zero_2" ? 2 : 0;
  }
  const Json scenario = {
      {"model", model_of(family, text)},
      {"cluster", {{"system", "AWS p3dn.24xlarge"}, {"nodes", 1}, {"per_node", devices}}},
      {"plan", plan}};
  const std::string label =
      family + " " + r.text("params_billion") + "B, " + r.text("gpus") + " GPUs, " + method;
  const bool out = r.text("out_of_memory") == "1";
  if (r.has("iteration_time_s_mean") && !out)
    b.add(label, scenario, Quantity::kSeconds, r.number("iteration_time_s_mean")).group =
        family + r.text("gpus");
  Case& memory = b.add(label + ", memory", scenario, Quantity::kMemory,
                       r.number("allocated_memory_gib") * kGiB);
  if (images && devices > 1 && method != "alpa.data_parallel")
    memory.exception =
        "the compiler shards and recomputes convolutions in ways that no layout of "
        "this model describes";
  if (sharding && is(family, "moe") && devices > 2)
    memory.exception = "the compiler also shards the dense layers";
  b.add(label + ", fits", scenario, Quantity::kFits, out ? 0 : 1);
}

namespace {

// The layout that a row of OSDI 2022 names, or how to choose it.
Choice osdi_plan(const CsvRow& r, Json& plan) {
  const std::string& how = r.text("configuration");
  const std::string& method = r.text("method");
  const int devices = r.whole("gpus"), batch = r.whole("global_batch_size");
  const int m = number_before(how, "micro-batches");
  if (m > 0) plan["micro_batches"] = m;
  const std::size_t dp = how.find("DP"), tp = how.find("TP"), pp = how.find("PP");
  if (method == "megatron") plan["software"] = "megatron";
  if (method == "deepspeed") {
    plan["software"] = "deepspeed";
    plan["ep"] = devices;
    plan["zero_stage"] = 1;
    plan["micro_batch"] = 8;
    return Choice::kGiven;
  }
  if (dp == 0 && tp != std::string::npos && pp != std::string::npos) {
    const int data = std::atoi(how.c_str() + dp + 2);
    plan["dp"] = data;
    plan["tp"] = std::atoi(how.c_str() + tp + 2);
    plan["pp"] = std::atoi(how.c_str() + pp + 2);
    if (m > 0) plan["micro_batch"] = std::max(1, batch / m / data);
    return Choice::kGiven;
  }
  if (method == "alpa.intra_only" || how.find("intra-op only") != std::string::npos)
    return Choice::kWithinOperators;
  if (method == "alpa.inter_only") {  // one stage for each device
    plan["pp"] = devices;
    return Choice::kStages;
  }
  const int stages = std::max(number_before(how, "stages"), number_before(how, "stage "));
  if (stages > 0 && devices % stages == 0) {
    plan["pp"] = stages;
    return Choice::kStages;
  }
  return Choice::kAny;
}

}  // namespace

void alpa_osdi_row(const CsvRow& r, Builder& b) {
  const std::string& family = r.text("model_family");
  const std::string& text = r.text("model_spec");
  const int devices = r.whole("gpus"), batch = r.whole("global_batch_size");
  const bool images = is(family, "wresnet"), out = r.text("out_of_memory") == "1";
  Json plan = {{"global_batch", batch},
               {"precision", r.text("precision")},
               {"recompute", images ? "none" : "full"}};
  if (r.text("method") == "alpa.inter_only" && !images && devices > spec(text, "L"))
    return b.skip(1, "more stages than layers: the compiler cuts inside layers");
  const Choice choice = osdi_plan(r, plan);
  const Json scenario = {{"model", model_of(family, text)},
                         {"cluster",
                          {{"system", "AWS p3.16xlarge"},
                           {"nodes", r.whole("nodes")},
                           {"per_node", r.whole("gpus_per_node")}}},
                         {"plan", plan}};
  const std::string label =
      family + " " + r.text("model") + ", " + r.text("gpus") + " GPUs, " + r.text("method");
  double seconds = 0;
  if (r.has("iteration_time_s_mean")) {
    seconds = r.number("iteration_time_s_mean");
  } else if (r.has("tflops_per_gpu")) {
    double flops = alpa_flops(family, text, batch);
    // Images: 360.4 TFLOP of each GPU of the 500M model, which has both figures, scaled by the
    // operations of the model.
    if (images) return b.skip(1, "TFLOP/s of images without a time: the count is not published");
    if (flops > 0) seconds = flops / (r.number("tflops_per_gpu") * 1e12 * devices);
  }
  if (seconds <= 0 || out) {
    if (out) {
      Case& one = b.add(label + ", fits", scenario, Quantity::kFits, 0);
      one.choice = choice;
    } else {
      b.skip(1, "no time");
    }
    return;
  }
  Case& one = b.add(label, scenario, Quantity::kSeconds, seconds);
  one.choice = choice;
  one.group = family + r.text("gpus");
  if (choice == Choice::kWithinOperators && r.whole("nodes") > 1)
    one.exception =
        "collectives inside operators over 25 Gb/s Ethernet: the compiler's choice is "
        "not published, and takes up to 9 times as long as the best layout";
  if (images && r.number("tflops_per_gpu") < 1)
    one.exception = "0.37 TFLOP/s: the compiler's plan falls back to copies over Ethernet";
  if (r.has("peak_memory_gib")) {
    Case& memory =
        b.add(label + ", memory", scenario, Quantity::kMemory, r.number("peak_memory_gib") * kGiB);
    memory.choice = choice;
    memory.exception =
        "micro-batch and layout are the compiler's choice; the row does not name "
        "them";
  }
}

}  // namespace weft::plan::tables::internal

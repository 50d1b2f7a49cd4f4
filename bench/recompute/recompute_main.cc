// Measures forward and backward of a GPT's blocks on one thread, in turn without recomputation,
// with selective and with full recomputation. Prints JSON lines: the time of a step relative to
// that without recomputation, the bytes held for backward, the peak, and the prediction of
// plan/model/activations.h.
//
//   weft_bench_recompute [batch=4] [sequence=512] [layers=4] [width=512] [heads=8] [dropout=0]
//                        [gated=0] [rounds=7]
//
// dropout is a percentage.
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/models/gpt.h"
#include "weft/parallel/recompute/recompute.h"
#include "weft/parallel/recompute/testing/tensor_meter.h"
#include "weft/plan/model/activations.h"

namespace weft::bench {
namespace {

using plan::Kept;
using Arguments = std::map<std::string, std::int64_t>;

constexpr std::array kWays = {Kept::kAll, Kept::kSelective, Kept::kInput};
constexpr std::array kNames = {"none", "selective", "full"};

struct Blocks {
  Blocks(models::GptOptions options, Kept kept_) : kept(kept_) {
    options.selective = kept == Kept::kSelective;
    torch::manual_seed(1);
    tp.seed_dropout(1);
    for (std::int64_t i = 0; i < options.layers; ++i)
      blocks.push_back(std::make_shared<models::GptBlock>(options, tp));
  }
  at::Tensor forward(at::Tensor x) const {
    const parallel::PreserveState draws = parallel::preserve_draws(tp);
    for (const auto& block : blocks) {
      const auto fn = [block](const at::Tensor& in) { return block->forward(in); };
      x = kept == Kept::kInput
              ? parallel::recompute_with({.random = false, .preserve = {draws}}, fn, x)
              : fn(x);
    }
    return x;
  }
  Kept kept;
  parallel::TensorParallel tp;
  std::vector<std::shared_ptr<models::GptBlock>> blocks;
};

struct Step {
  double ms = 0;
  std::int64_t held = 0, peak = 0;
  at::Tensor gradient;  // gradient of the input: the same bits with and without recomputation
};

Step step(const Blocks& model, const at::Tensor& x) {
  const at::Tensor leaf = x.detach().requires_grad_();
  for (const auto& block : model.blocks) block->zero_grad(/*set_to_none=*/false);
  model.tp.set_draw(0);
  const parallel::TensorMeter meter;
  const auto start = std::chrono::steady_clock::now();
  const at::Tensor y = model.forward(leaf);
  const std::int64_t held = meter.live();
  y.backward(torch::ones_like(y));
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
  return {time.count(), held, meter.peak(), leaf.grad()};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

models::GptOptions options_of(const Arguments& a) {
  models::GptOptions o{.layers = a.at("layers"),
                       .width = a.at("width"),
                       .heads = a.at("heads"),
                       .sequence_length = a.at("sequence")};
  if (a.at("gated") != 0) o = models::like_llama(o);
  o.hidden = 4 * o.width;
  o.kv_heads = o.heads;
  o.dropout = static_cast<double>(a.at("dropout")) / 100;
  return o;
}

std::int64_t formula(const Arguments& a, Kept kept) {
  const plan::LayerShape layer{.batch = a.at("batch"),
                               .sequence = a.at("sequence"),
                               .width = a.at("width"),
                               .heads = a.at("heads"),
                               .gated = a.at("gated") != 0,
                               .rms = a.at("gated") != 0};
  return a.at("layers") *
         plan::activation_bytes(layer, {.dropout = a.at("dropout") > 0, .kept = kept});
}

void print(const Arguments& arguments, std::size_t way, const Step& last,
           const std::vector<std::vector<double>>& times) {
  std::string params;
  for (const auto& [name, number] : arguments)
    params += "\"" + name + "\": " + std::to_string(number) + ", ";
  std::vector<double> ratios;
  for (std::size_t i = 0; i < times[way].size(); ++i) ratios.push_back(times[way][i] / times[0][i]);
  std::printf(
      "{\"bench\": \"recompute\", \"params\": {%s\"recompute\": \"%s\"}, \"value\": %.4f, "
      "\"unit\": \"of a step's time without\", \"ms\": "
      "%.1f, "
      "\"held_bytes\": %lld, \"formula_bytes\": %lld, \"peak_bytes\": %lld, \"runs\": %zu}\n",
      params.c_str(), kNames[way], median(ratios), median(times[way]),
      static_cast<long long>(last.held), static_cast<long long>(formula(arguments, kWays[way])),
      static_cast<long long>(last.peak), ratios.size());
}

int run(const Arguments& arguments) {
  at::set_num_threads(1);
  std::vector<Blocks> models;
  for (const Kept kept : kWays) models.emplace_back(options_of(arguments), kept);
  const at::Tensor x =
      torch::randn({arguments.at("batch"), arguments.at("sequence"), arguments.at("width")});
  std::vector<std::vector<double>> times(kWays.size());
  std::vector<Step> last(kWays.size());
  for (std::int64_t round = -1; round < arguments.at("rounds"); ++round) {
    for (std::size_t way = 0; way < kWays.size(); ++way) {
      last[way] = step(models[way], x);
      if (round >= 0) times[way].push_back(last[way].ms);
    }
  }
  for (std::size_t way = 0; way < kWays.size(); ++way) {
    if (!torch::equal(last[way].gradient, last[0].gradient)) {
      std::fprintf(stderr, "weft_bench_recompute: %s gives another gradient than none\n",
                   kNames[way]);
      return 1;
    }
    print(arguments, way, last[way], times);
  }
  return 0;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  weft::bench::Arguments arguments{{"batch", 4}, {"sequence", 512}, {"layers", 4}, {"width", 512},
                                   {"heads", 8}, {"dropout", 0},    {"gated", 0},  {"rounds", 7}};
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i], name = argument.substr(0, argument.find('='));
    const std::string value = name.size() < argument.size() ? argument.substr(name.size() + 1) : "";
    if (arguments.count(name) == 0 || value.empty() ||
        value.find_first_not_of("0123456789") != std::string::npos) {
      std::fprintf(
          stderr,
          "weft_bench_recompute: %s: give name=number of those that recompute_main.cc lists\n",
          argv[i]);
      return 2;
    }
    arguments[name] = std::stoll(value);
  }
  return weft::bench::run(arguments);
}

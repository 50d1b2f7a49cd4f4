// Measures forward and backward of a GPT on one rank and with its sequence split over all ranks, in
// turn. The ranks are processes with one thread each. Prints JSON lines: the speedup, the
// activations that a rank holds for backward, and the peak memory, both relative to one rank.
//
//   weft_bench_context [sequence=2048] [layers=4] [width=512] [heads=8] [kv_heads=8] [ranks=2]
//                      [rounds=7] [heads_method=0] [transport=shm]
#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "weft/comm/testing/fork_ranks.h"
#include "weft/models/gpt.h"

namespace weft::bench {
namespace {

using parallel::ContextMethod;
using parallel::ContextParallel;
using parallel::TensorParallel;
using Arguments = std::map<std::string, std::int64_t>;

// Counts the bytes of all live tensors.
class Counting final : public c10::Allocator {
 public:
  explicit Counting(c10::Allocator* under) : under_(under) {}
  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr inner = under_->allocate(bytes);
    void* const data = inner.get();
    auto* const block = new Block{std::move(inner), static_cast<std::int64_t>(bytes), this};
    const std::int64_t live = live_ += block->bytes;
    peak_ = std::max(peak_.load(), live);
    return {data, block, &Counting::release, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  std::int64_t live() const { return live_; }
  std::int64_t take_peak() { return peak_.exchange(live_); }

 private:
  struct Block {
    c10::DataPtr data;
    std::int64_t bytes;
    Counting* owner;
  };
  static void release(void* context) {
    auto* const block = static_cast<Block*>(context);
    block->owner->live_ -= block->bytes;
    delete block;
  }

  c10::Allocator* under_;
  std::atomic<std::int64_t> live_ = 0, peak_ = 0;
};

struct Step {
  double ms = 0, forward_ms = 0;
  // Bytes in addition to those before the step: held for backward, and at the peak.
  std::int64_t held = 0, peak = 0;
  double loss = 0;
};

double ms_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

// Runs forward and backward. With several ranks, it averages the gradients.
Step step(models::Gpt& model, const at::Tensor& tokens, Counting& memory) {
  Step out;
  model->zero_grad(/*set_to_none=*/false);
  const std::int64_t before = memory.live();
  memory.take_peak();
  const auto start = std::chrono::steady_clock::now();
  const at::Tensor loss = model->loss(model->forward(tokens), tokens.roll(-1, 1));
  out.forward_ms = ms_since(start);
  out.held = memory.live() - before;
  loss.backward();
  parallel::average_gradients(*model, model->cp);
  out.ms = ms_since(start);
  out.peak = memory.take_peak() - before;
  out.loss = loss.item<double>();
  return out;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// True if both have the same loss and gradients, up to the rounding of float32 sums.
bool verify(models::Gpt& one, models::Gpt& split, const at::Tensor& tokens, Counting& memory) {
  const double a = step(one, tokens, memory).loss, b = step(split, tokens, memory).loss;
  bool same = std::abs(a - b) <= 1e-5 * std::abs(a);
  const auto theirs = split->named_parameters();
  for (const auto& p : one->named_parameters())
    same = same && at::allclose(theirs[p.key()].grad(), p.value().grad(), 1e-3, 1e-5);
  return same;
}

void print(const Arguments& arguments, const char* what, double value, const std::string& more) {
  std::string params;
  for (const auto& [name, number] : arguments)
    params += "\"" + name + "\": " + std::to_string(number) + ", ";
  std::printf("{\"bench\": \"context\", \"params\": {%s\"what\": \"%s\"}, \"value\": %.4f, %s}\n",
              params.c_str(), what, value, more.c_str());
  std::fflush(stdout);
}

struct Rounds {
  // Milliseconds: a step on one rank, a step and its forward on the slowest of all ranks. `ratios`:
  // one / split.
  std::vector<double> one, split, forward, ratios;
};

Rounds measure(models::Gpt& one, models::Gpt& split, const at::Tensor& tokens, Counting& memory,
               int rounds) {
  const Group& group = split->cp.group();
  Rounds all;
  for (int round = -1; round < rounds; ++round) {
    group.barrier();
    const double alone = group.rank() == 0 ? step(one, tokens, memory).ms : 0;
    group.barrier();
    const Step mine = step(split, tokens, memory);
    at::Tensor slowest = torch::tensor({mine.ms, mine.forward_ms}, at::kDouble);
    group.all_reduce(slowest, ReduceOp::kMax);
    if (round < 0 || group.rank() != 0) continue;  // round -1 is the warm-up
    all.one.push_back(alone);
    all.split.push_back(slowest[0].item<double>());
    all.forward.push_back(slowest[1].item<double>());
    all.ratios.push_back(all.one.back() / all.split.back());
  }
  return all;
}

models::GptOptions options_of(const Arguments& arguments) {
  models::GptOptions o = models::like_llama(
      {.vocabulary = 4096, .layers = arguments.at("layers"), .width = arguments.at("width")});
  o.heads = arguments.at("heads");
  o.kv_heads = arguments.at("kv_heads");
  return o;
}

int run(const Group& group, const Arguments& arguments) {
  at::set_num_threads(1);
  static Counting memory(c10::GetAllocator(c10::kCPU));
  c10::SetAllocator(c10::kCPU, &memory, 100);
  const models::GptOptions options = options_of(arguments);
  const auto method =
      arguments.at("heads_method") != 0 ? ContextMethod::kHeads : ContextMethod::kRing;
  const TensorParallel here(group.subgroup({group.rank()}, "tp"), 1),
      again(group.subgroup({group.rank()}, "tp"), 1);
  models::Gpt one(options, here), split(options, again, ContextParallel(group, method));
  const at::Tensor tokens =
      (torch::arange(arguments.at("sequence")) * 7919 % options.vocabulary).unsqueeze(0);
  if (!verify(one, split, tokens, memory)) {
    std::fprintf(stderr,
                 "weft_bench_context: rank %d: losses or gradients differ from one rank's\n",
                 group.rank());
    return 1;
  }
  const Step whole = step(one, tokens, memory), part = step(split, tokens, memory);
  at::Tensor most = torch::tensor({part.held, part.peak}, at::kLong);
  group.all_reduce(most, ReduceOp::kMax);
  const Rounds rounds =
      measure(one, split, tokens, memory, static_cast<int>(arguments.at("rounds")));
  if (group.rank() != 0) return 0;
  const std::string runs = "\"runs\": " + std::to_string(rounds.ratios.size());
  print(arguments, "step", median(rounds.ratios),
        "\"unit\": \"times faster than one rank\", \"one_ms\": " +
            std::to_string(median(rounds.one)) +
            ", \"ms\": " + std::to_string(median(rounds.split)) +
            ", \"forward_ms\": " + std::to_string(median(rounds.forward)) + ", " + runs);
  const auto memory_line = [&](const char* what, std::int64_t of_one, std::int64_t of_part) {
    print(arguments, what, static_cast<double>(of_part) / static_cast<double>(of_one),
          "\"unit\": \"of one rank's\", \"one_bytes\": " + std::to_string(of_one) +
              ", \"bytes\": " + std::to_string(of_part) + ", \"runs\": 1");
  };
  memory_line("activations held", whole.held, most[0].item<std::int64_t>());
  memory_line("memory at most", whole.peak, most[1].item<std::int64_t>());
  return 0;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) try {
  weft::bench::Arguments arguments{{"sequence", 2048}, {"layers", 4},      {"width", 512},
                                   {"heads", 8},       {"kv_heads", 8},    {"ranks", 2},
                                   {"rounds", 7},      {"heads_method", 0}};
  std::string transport = "shm";
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i], name = argument.substr(0, argument.find('='));
    const std::string value = name.size() < argument.size() ? argument.substr(name.size() + 1) : "";
    if (name == "transport") {
      transport = value;
    } else if (arguments.count(name) == 1 && !value.empty() &&
               value.find_first_not_of("0123456789") == std::string::npos) {
      arguments[name] = std::stoll(value);
    } else {
      std::fprintf(stderr,
                   "weft_bench_context: %s: give name=number of those that context_main.cc lists\n",
                   argv[i]);
      return 2;
    }
  }
  const auto codes = weft::comm::fork_ranks(
      static_cast<int>(arguments.at("ranks")), transport,
      [&](const weft::Group& group) { return weft::bench::run(group, arguments); });
  return *std::max_element(codes.begin(), codes.end(),
                           [](int a, int b) { return std::abs(a) < std::abs(b); }) == 0
             ? 0
             : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "weft_bench_context: %s\n", error.what());
  return 70;
}

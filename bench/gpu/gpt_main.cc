// Trains a GPT-2 on random tokens with weft, each rank on a device. Prints one JSON line with the
// losses and the times. It takes its rank and the world size from the environment. Usage:
//
//   weft_bench_gpu [what=train|reduce] [device=cuda|cpu] [transport=auto] [layers=12] [width=768]
//                  [heads=12] [sequence=1024] [batch=16] [steps=10] [windows=4] [precision=bf16]
//
// what=reduce: all-reduces of float32 tensors on the device instead.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "weft/comm/init.h"
#include "weft/engine/data_parallel.h"
#include "weft/models/gpt.h"
#include "weft/parallel/compose/autocast.h"

namespace weft::bench {
namespace {

constexpr std::int64_t kVocabulary = 50304;  // GPT-2's, up to a multiple of 64
using Arguments = std::map<std::string, std::string>;
using Clock = std::chrono::steady_clock;

Arguments parse(int argc, char** argv) {
  Arguments arguments{{"what", "train"},    {"device", "cuda"},   {"transport", "auto"},
                      {"layers", "12"},     {"width", "768"},     {"heads", "12"},
                      {"sequence", "1024"}, {"batch", "16"},      {"steps", "10"},
                      {"windows", "4"},     {"precision", "bf16"}};
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const auto equals = text.find('=');
    if (equals == std::string::npos || arguments.count(text.substr(0, equals)) == 0)
      throw Error(Errc::kInvalidArgument, "unknown argument '" + text + "'");
    arguments[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return arguments;
}

void wait_for(const at::Device& device) {
  if (!device.is_cpu())
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::string list(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) text += (text.empty() ? "" : ", ") + std::to_string(value);
  return "[" + text + "]";
}

// gpt.py has the same formulas.
void set_weights(torch::nn::Module& model) {
  const torch::NoGradGuard guard;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& p = item.value();
    const double phase = static_cast<double>(p.numel() % 97);
    at::Tensor values =
        ((torch::arange(p.numel()).remainder(1009).to(torch::kFloat) * 0.37 + phase).sin() * 0.02);
    if (p.dim() == 1 && item.key().find("norm") != std::string::npos &&
        item.key().find("weight") != std::string::npos)
      values = values + 1;
    p.copy_(values.view(p.sizes()));
  }
}

at::Tensor tokens_of(std::int64_t batch, std::int64_t sequence, int rank, int step) {
  const std::int64_t first = (rank + 64 * step) * batch * (sequence + 1);
  return ((torch::arange(batch * (sequence + 1)) + first) * 7919 % kVocabulary)
      .view({batch, sequence + 1});
}

void train(const Group& world, const at::Device& device, const Arguments& arguments) {
  const auto number = [&](const char* name) { return std::stoll(arguments.at(name)); };
  models::Gpt gpt(models::GptOptions{.vocabulary = kVocabulary,
                                     .layers = number("layers"),
                                     .width = number("width"),
                                     .heads = number("heads"),
                                     .sequence_length = number("sequence"),
                                     .initial_std = 0},
                  parallel::TensorParallel());
  set_weights(*gpt);
  gpt->to(device);
  auto model = engine::data_parallel(gpt, world);
  auto optim = model.optimizer<torch::optim::AdamW>(torch::optim::AdamWOptions(3e-4));
  const auto precision = arguments.at("precision") == "bf16" ? parallel::Precision::kBf16
                                                             : parallel::Precision::kAsItIs;
  std::vector<double> losses, times;
  at::Tensor loss;
  int done = 0;
  std::vector<double> parts(3);  // forward, backward, update; with waits
  bool timed = false;
  Clock::time_point mark;
  const auto end_part = [&](std::size_t part) {
    if (!timed) return;
    wait_for(device);
    parts[part] += ms_since(mark) / static_cast<double>(number("steps"));
    mark = Clock::now();
  };
  const auto step = [&] {
    mark = Clock::now();
    const at::Tensor tokens =
        tokens_of(number("batch"), number("sequence"), world.rank(), done++).to(device);
    {
      const parallel::Autocast autocast(precision, device.type());
      loss = model->loss(model.forward(tokens.slice(1, 0, -1).contiguous()),
                         tokens.slice(1, 1).contiguous());
    }
    end_part(0);
    loss.backward();
    end_part(1);
    optim.step();
    optim.zero_grad();
    end_part(2);
  };
  for (int warm = 0; warm < 5; ++warm) {
    step();
    losses.push_back(loss.item<double>());
  }
  for (int window = 0; window < number("windows"); ++window) {
    wait_for(device);
    world.barrier();
    const auto start = Clock::now();
    for (int i = 0; i < number("steps"); ++i) step();
    wait_for(device);
    times.push_back(ms_since(start) / static_cast<double>(number("steps")));
  }
  losses.push_back(loss.item<double>());
  timed = true;
  for (int i = 0; i < number("steps"); ++i) step();
  if (world.rank() == 0)
    std::printf(
        "{\"impl\": \"weft\", \"ms\": %s, \"losses\": %s, \"parts_ms\": %s, \"how\": \"%s\"}\n",
        list(times).c_str(), list(losses).c_str(), list(parts).c_str(), model.describe().c_str());
}

void reduce(const Group& world, const at::Device& device) {
  for (const std::int64_t mib : {1, 25, 100}) {
    at::Tensor data = at::empty({mib << 18}, at::device(device).dtype(at::kFloat));
    std::vector<double> times;
    for (int i = 0; i < 12; ++i) {
      data.fill_(world.rank() + 1.0);
      wait_for(device);
      world.barrier();
      const auto start = Clock::now();
      world.all_reduce(data);
      wait_for(device);
      if (i >= 2) times.push_back(ms_since(start));
    }
    const double sum = world.size() * (world.size() + 1) / 2.0;
    if (!data.eq(sum).all().item<bool>())
      throw Error(Errc::kInternal, "the sum of " + std::to_string(mib) + " MiB is wrong");
    if (world.rank() == 0)
      std::printf("{\"impl\": \"weft\", \"mib\": %d, \"ms\": %s}\n", static_cast<int>(mib),
                  list(times).c_str());
  }
}

int run(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  const Group world = comm::init({.transport = comm::parse_transport(arguments.at("transport"))});
  const at::Device device = arguments.at("device") == "cuda" ? at::Device(at::kCUDA, 0)
                                                             : at::Device(arguments.at("device"));
  if (arguments.at("what") == "reduce") {
    reduce(world, device);
  } else {
    train(world, device, arguments);
  }
  return 0;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  try {
    return weft::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weft_bench_gpu: %s\n", error.what());
    return 1;
  }
}

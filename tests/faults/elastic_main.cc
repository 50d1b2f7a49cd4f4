// The ranks of elastic_test.py: a training loop over weft::elastic::run(), which ends with a digest
// of the whole state. Arguments: the kind of model, then NAME=VALUE.
//   dp         data_parallel with weft's optimizer (weights=shared, codec=topk:0.1)
//   torch      data_parallel with an optimizer of torch
//   sharded    ZeRO-3, made for each group
//   steps=60   copy_steps=3   width=64   throw=20 (rank 1 throws in that step)
//   timeout_ms=300000   pause_ms=0 (pause in each step)   multiple=1 (of the number of ranks)
//   save=DIR (SIGTERM: save a checkpoint there, and stop; the start continues from it)
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <thread>

#include "weft/weft.h"

namespace {

namespace nn = torch::nn;
using weft::elastic::State;

volatile std::sig_atomic_t asked_to_go = 0;

std::string option(int argc, char** argv, const std::string& name, const std::string& value) {
  for (int i = 2; i < argc; ++i) {
    const std::string one = argv[i];
    if (one.rfind(name + "=", 0) == 0) return one.substr(name.size() + 1);
  }
  return value;
}

// Peak of this process's memory, in MiB.
long peak_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::atol(line.c_str() + 6) / 1024;
  }
  return 0;
}

nn::Sequential network(std::int64_t width, bool with_buffers) {
  nn::Sequential net(nn::Linear(16, width), nn::Tanh(), nn::Dropout(0.2));
  if (with_buffers) net->push_back(nn::BatchNorm1d(width));
  net->push_back(nn::Linear(width, 1));
  return net;
}

// Training with any kind of model: its loss, its update, and the samples seen.
struct Training {
  std::function<at::Tensor(const at::Tensor& input)> forward;
  std::function<void()> update;
  std::int64_t step = 0, last = 60, throw_at = 0, pause_ms = 0;
  std::optional<weft::data::Sampler> sampler;
  at::Tensor seen = at::zeros({480}, at::kLong);  // how often each sample was used, on all ranks

  // Each global batch has 24 of 480 samples. Its inputs follow from their numbers.
  bool do_step(const weft::Group& world) {
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
    auto share = sampler->next();
    if (!share) share = sampler->next();  // the next epoch
    at::Tensor used = at::zeros_like(seen);
    for (const auto index : share->indices) used[index] += 1;
    const auto rows = at::tensor(share->indices, at::kFloat).unsqueeze(1);
    const auto input = (rows * at::arange(1, 17)).sin();
    torch::mse_loss(forward(input), input.sum(1, true).cos()).backward();
    const char* const note = std::getenv("WEFT_NEWCOMER");
    const bool is_new = note != nullptr && *note != '\0';
    if (step + 1 == throw_at && world.rank() == 1 && !is_new)
      throw std::runtime_error("the program's own error");
    update();
    world.all_reduce(used);
    seen += used;
    return ++step < last;
  }
};

std::string digest(const State& state, const weft::Group& world, std::int64_t step) {
  const auto shards = state.shards(world, step);
  std::uint64_t sum = 0;
  for (const auto& [part, slices] : shards.parts) {
    for (const auto& slice : slices) {
      const auto bytes = slice.tensor.contiguous();
      const auto* at = static_cast<const unsigned char*>(bytes.const_data_ptr());
      std::uint64_t hash = 1469598103934665603u;  // FNV-1a of each slice, with its place
      const auto add = [&](unsigned char byte) { hash = (hash ^ byte) * 1099511628211u; };
      for (const char c : part + "/" + slice.name) add(static_cast<unsigned char>(c));
      for (const auto offset : slice.offset) add(static_cast<unsigned char>(offset));
      for (std::size_t i = 0; i < bytes.nbytes(); ++i) add(at[i]);
      sum += hash;
    }
  }
  at::Tensor all = at::scalar_tensor(static_cast<std::int64_t>(sum), at::kLong);
  world.all_reduce(all);
  char text[32];
  std::snprintf(text, sizeof text, "%016llx",
                static_cast<unsigned long long>(all.item<std::int64_t>()));
  return text;
}

int train(int argc, char** argv) {
  const std::string kind = argc > 1 ? argv[1] : "dp";
  const auto number = [&](const char* name, const char* value) {
    return std::atoll(option(argc, argv, name, value).c_str());
  };
  torch::manual_seed(1);
  Training training;
  training.last = number("steps", "60");
  training.throw_at = number("throw", "0");
  training.pause_ms = number("pause_ms", "0");
  State state;
  auto net = network(number("width", "64"), true);
  weft::DataParallelOptions how;
  how.weights = weft::engine::parse_weights(option(argc, argv, "weights", "auto"));
  how.codec = option(argc, argv, "codec", "none");
  auto model = weft::data_parallel(net, how);
  std::optional<weft::engine::Optimizer> own;
  std::optional<torch::optim::AdamW> theirs;
  std::optional<weft::Sharded> sharded;
  if (kind == "sharded") {
    state.on_group([&](const weft::Group& world) {
      torch::manual_seed(1);
      const auto blocks = network(number("width", "64"), false);
      sharded.emplace(std::vector<weft::Block>{weft::block("net", blocks)}, world,
                      weft::optimizer_spec(torch::optim::AdamWOptions(1e-2), {}),
                      weft::ShardedOptions{.stage = 3});
    });
    state.add("model", sharded);
    training.forward = [&](const at::Tensor& input) { return sharded->forward(input); };
    training.update = [&] {
      sharded->step();
      sharded->zero_grad();
    };
  } else {
    state.add("model", model);
    training.forward = [&](const at::Tensor& input) { return model.forward(input); };
    if (kind == "torch") {
      theirs.emplace(net->parameters(), torch::optim::AdamWOptions(1e-2));
      state.add("optimizer", *theirs);
      training.update = [&] {
        theirs->step();
        theirs->zero_grad();
      };
    } else {
      own.emplace(model.optimizer<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2)));
      training.update = [&] {
        own->step();
        own->zero_grad();
      };
    }
  }
  state.on_group([&](const weft::Group& world) {
    training.sampler.emplace(weft::data::SamplerOptions{
        .size = 480, .batch = 24, .seed = 3, .rank = world.rank(), .world = world.size()});
  });
  state.add("sampler", training.sampler);
  state.add("step", training.step);
  state.add("seen", training.seen);
  weft::elastic::RunOptions options;
  options.init.timeout = std::chrono::milliseconds(number("timeout_ms", "300000"));
  options.copy_steps = number("copy_steps", "0");
  options.multiple = static_cast<int>(number("multiple", "1"));
  if (const std::string dir = option(argc, argv, "save", ""); !dir.empty()) {
    std::signal(SIGTERM, [](int) { asked_to_go = 1; });
    options.should_stop = [] { return asked_to_go != 0; };
    options.save = [&state, &training, dir](const weft::Group& world) {
      return weft::checkpoint::save(dir, state.shards(world, training.step), world);
    };
    options.reload = [&state, &training, dir](const weft::Group& world) {
      const auto newest = weft::checkpoint::latest(dir, world);
      if (newest.folder) state.load(world, weft::checkpoint::Reader(*newest.folder));
      return newest.folder ? training.step : 0;
    };
    options.resume = true;
  }
  const auto do_step = [&](const weft::Group& world) {
    if (options.save && training.step == 0 && world.rank() == 0)
      std::cout << "training begins" << std::endl;
    return training.do_step(world);
  };
  const auto done = weft::elastic::run(state, do_step, options);
  if (done.left) return 0;
  if (done.stopped) {
    std::cout << "rank " << done.world.rank() << " stopped after step " << training.step
              << std::endl;
    return 128 + SIGTERM;
  }
  const std::string sum = digest(state, done.world, training.step);
  at::Tensor peak = at::zeros({done.world.size()}, at::kLong);
  peak[done.world.rank()] = peak_mib();
  done.world.all_reduce(peak);
  if (done.world.rank() != 0) return 0;
  std::cout << "steps=" << training.step << " ranks=" << done.world.size() << " state=" << sum
            << " uses=" << training.seen.min().item<std::int64_t>() << ".."
            << training.seen.max().item<std::int64_t>() << " peak_mib=";
  for (int rank = 0; rank < done.world.size(); ++rank)
    std::cout << (rank > 0 ? "," : "") << peak[rank].item<std::int64_t>();
  std::cout << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return train(argc, argv);
  } catch (const weft::Error& error) {
    std::cerr << "elastic: " << error.what() << std::endl;
    return weft::exit_code(error.code());
  } catch (const std::exception& error) {
    std::cerr << "elastic: " << error.what() << std::endl;
    return 1;
  }
}

// Workers train one linear model through a parameter server, each at its own pace.
//
//   weft run -n 3 example_parameter_server [sync | ssp | async]
//
// Each rank is a worker, and ranks 0 and 1 also run a server.
#include <torch/torch.h>

#include <iostream>
#include <optional>
#include <thread>

#include "weft/ps/client.h"
#include "weft/ps/server.h"
#include "weft/weft.h"

using namespace std::chrono_literals;

namespace {

int staleness_of(const std::string& mode) {
  return mode == "async" ? weft::ps::kAsync : mode == "ssp" ? 2 : weft::ps::kSync;
}

std::span<const float> floats(const torch::Tensor& tensor) {
  return {tensor.const_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "sync";
  auto world = weft::init();
  const auto directory = weft::ps::job_directory("example");
  const auto rank = static_cast<std::uint32_t>(world.rank());
  const auto servers = static_cast<std::uint32_t>(std::min(world.size(), 2));
  std::optional<weft::ps::Server> server;
  if (rank < servers)
    server.emplace(
        weft::ps::ServerOptions{.directory = directory.get(), .server = rank, .servers = servers});

  // Every worker has samples of its own of the same line: y = x · (1, 2, 3) + 4.
  torch::manual_seed(rank);
  const auto x = torch::randn({64, 3});
  const auto y = x.matmul(torch::tensor({1.0f, 2.0f, 3.0f})) + 4;
  const auto weight = torch::zeros({3}), bias = torch::zeros({1});

  weft::ps::Client client({.directory = directory.get(), .servers = servers, .worker = rank});
  client.define({{"weight", floats(weight)}, {"bias", floats(bias)}},
                {.rule = weft::kernels::Sgd{.lr = 0.1}, .staleness = staleness_of(mode)});
  client.join();
  world.barrier();
  for (int step = 0; step < 100; ++step) {
    client.wait(client.pull());
    const auto value = client.value("weight");
    const auto w = torch::tensor(at::ArrayRef<float>(value.data(), value.size()));
    const auto error = x.matmul(w) + client.value("bias")[0] - y;
    const auto slope = x.t().matmul(error) / 64;
    std::copy_n(slope.const_data_ptr<float>(), 3, client.gradient("weight").begin());
    client.gradient("bias")[0] = error.mean().item<float>();
    client.wait(client.push());
    if (rank == 1) std::this_thread::sleep_for(2ms);  // a slower worker
  }
  client.leave();
  world.barrier();
  client.wait(client.pull());
  const float bias_now = client.value("bias")[0];
  if (rank == 0) std::cout << mode << ": bias " << bias_now << " (4)\n";
  world.barrier();  // no server ends before all workers have read
  return std::abs(bias_now - 4) < 0.1 ? 0 : 1;
}

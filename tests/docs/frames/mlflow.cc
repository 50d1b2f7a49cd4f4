// A run of MLflow's, in which the callback writes.
#include <torch/torch.h>
#include <weft/weft.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

int main() {
  const auto world = weft::init();
  const std::string id = "rank" + std::to_string(world.rank());
  std::filesystem::create_directories("mlruns/0/" + id + "/metrics");
  torch::nn::Linear net(1, 1);
  weft::Task task(weft::blocks_of(net), [](const torch::Tensor& y, const torch::Tensor& t) {
    return torch::mse_loss(y, t);
  });
  task.train = weft::train::samples(torch::ones({64, 1}), torch::ones({64, 1}));
  weft::train::Options options;
  options.epochs = 2;
  options.batch = 16;
  // BLOCK
  weft::Trainer(task, options, world).run();
  std::ifstream file("mlruns/0/" + id + "/metrics/loss");
  long long ms = 0, step = 0;
  double loss = -1;
  file >> ms >> loss >> step;
  return loss >= 0 && step == 4 ? 0 : 1;
}

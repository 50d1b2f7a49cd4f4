// The folder "weights", as Trainer::save() writes it.
#include <torch/torch.h>
#include <weft/weft.h>

#include <iostream>
namespace nn = torch::nn;

int main() {
  {
    nn::Sequential net(nn::Linear(2, 32), nn::ReLU(), nn::Linear(32, 1));
    weft::Task task(weft::blocks_of(net), [](const torch::Tensor& y, const torch::Tensor& t) {
      return torch::mse_loss(y, t);
    });
    task.train = weft::train::samples(torch::rand({64, 2}), torch::rand({64, 1}));
    weft::Trainer trainer(task, {}, weft::init());
    trainer.run();
    trainer.save("weights");
  }
  const torch::NoGradGuard no_grad;
  // BLOCK
}

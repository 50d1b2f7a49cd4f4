// A training loop over a data set, with libtorch's sampler and loader.
#include <torch/torch.h>
#include <weft/weft.h>

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return layer(x).log_softmax(1); }
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(4, 10))};
};
TORCH_MODULE(Net);

struct Samples : torch::data::Dataset<Samples> {
  torch::data::Example<> get(std::size_t i) override {
    return {torch::ones(4), torch::tensor(static_cast<std::int64_t>(i % 10))};
  }
  std::optional<std::size_t> size() const override { return 256; }
};

int main() {
  auto dataset = Samples().map(torch::data::transforms::Stack<>());
  const std::size_t size = 256;
  // BLOCK
}

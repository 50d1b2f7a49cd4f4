// A few batches for a model of width 64.
#include <torch/torch.h>
#include <weft/weft.h>

int main() {
  const auto ones = torch::ones({4, 64});
  const std::vector<torch::data::Example<>> batches(2, {ones, ones});
  // BLOCK
}

// Batches of tokens for a model of Hugging Face's format.
#include <torch/torch.h>
#include <weft/models.h>
#include <weft/weft.h>

int main() {
  const std::vector<torch::Tensor> batches(2, torch::arange(2 * 17).view({2, 17}));
  // BLOCK
  if (model.steps() != 2) return 1;
}

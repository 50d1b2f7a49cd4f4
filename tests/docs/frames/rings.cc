// Batches that are the same on all ranks, and the module of all stages at the end.
#include <torch/torch.h>
#include <weft/weft.h>

#include <iostream>

int main() {
  const std::vector<torch::data::Example<>> batches(3,
                                                    {torch::ones({16, 2}), torch::arange(16) % 2});
  // BLOCK
  net->forward(batches[0].data);
}

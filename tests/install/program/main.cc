// Joins its world through every layer up to comm; alone, what it sums is its own.
#include <torch/types.h>

#include <cstdio>

#include "weft/weft.h"

int main() {
  const weft::Group world = weft::init();
  at::Tensor sum = torch::full({3}, world.rank() + 1.0f);
  world.all_reduce(sum);
  std::printf("rank %d of %d: %g\n", world.rank(), world.size(), sum[2].item<float>());
  return sum[2].item<float>() == static_cast<float>(world.size() * (world.size() + 1) / 2) ? 0 : 1;
}

// Joins a world of one through every layer up to comm: what it sums is its own.
#include <torch/types.h>

#include <cstdio>

#include "weft/comm/init.h"

int main() {
  const weft::Group world = weft::init();
  at::Tensor sum = torch::full({3}, world.rank() + 1.0f);
  world.all_reduce(sum);
  std::printf("rank %d of %d: %g\n", world.rank(), world.size(), sum[2].item<float>());
  return world.size() == 1 && sum[2].item<float>() == 1.0f ? 0 : 1;
}

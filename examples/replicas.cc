// The simple replica model: a function written for one device runs on several, here threads of this
// process, and sums, gathers and broadcasts across them. Usage: replicas [number of replicas]
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>

#include "weft/weft.h"

namespace {

// Power iteration for the largest eigenvalue of A'A, where each replica holds some rows of A and
// none sees the whole matrix.
double largest_eigenvalue(const weft::Group& group, const torch::Tensor& rows) {
  auto vector = torch::randn({rows.size(1)}, torch::kDouble);
  group.broadcast(vector);  // one start for all
  double value = 0;
  for (int i = 0; i < 200; ++i) {
    auto next = rows.t().mv(rows.mv(vector));
    group.all_reduce(next);  // the sum over everybody's rows
    value = next.norm().item<double>();
    vector = next / value;
  }
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  const int replicas = argc > 1 ? std::atoi(argv[1]) : 4;
  torch::manual_seed(1);
  const auto matrix = torch::randn({64, 16}, torch::kDouble);
  const double expected = torch::linalg_svdvals(matrix).max().square().item<double>();
  bool right = true;
  weft::replicate(replicas, [&](weft::Group group) {
    const auto rows = matrix.tensor_split(group.size())[static_cast<std::size_t>(group.rank())];
    const double value = largest_eigenvalue(group, rows);
    // What each replica found, in replica order, on replica 0.
    const auto found = group.gather(torch::full({1}, value, torch::kDouble));
    if (group.rank() != 0) return;
    right = torch::allclose(torch::cat(found),
                            torch::full({group.size()}, expected, torch::kDouble), 1e-6);
    std::cout << group.size() << " replicas: " << value << ", expected " << expected << '\n';
  });
  return right ? 0 : 1;
}

// A model of split layers, trained over tensor parallelism.
#include <torch/torch.h>
#include <weft/layers.h>
#include <weft/weft.h>

using namespace weft::parallel;

// BLOCK

int main() {
  const auto world = weft::init();
  const weft::Mesh mesh(world, {{"tp", world.size()}});
  auto model = weft::parallelize(make_model(), {}, mesh);
  const auto x = torch::ones({8, 64});
  const double first = model.train_step({x}, {2 * x});
  model.step();
  model.zero_grad();
  if (model.train_step({x}, {2 * x}) >= first) return 1;
}

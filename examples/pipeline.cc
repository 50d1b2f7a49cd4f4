// A net of many layers cut over ranks: each has some of an MLP-Mixer's blocks, and micro-batches
// flow through them (1F1B).
//   weft run -n 2 pipeline
#include <torch/torch.h>

#include <iostream>

#include "weft/models.h"
#include "weft/weft.h"

using weft::parallel::Tensors;

// Images of 28x28 in ten classes: a pattern for each class, under noise. The same on all ranks.
struct Images {
  explicit Images(int64_t count) : labels(torch::arange(count) % 10) {
    pixels =
        torch::randn({10, 1, 28, 28}).index_select(0, labels) + torch::randn({count, 1, 28, 28});
  }
  torch::Tensor labels, pixels;
};

int main() {
  torch::manual_seed(1);
  const int64_t count = 1024, batch = 64;
  const Images train(count);
  const auto world = weft::init();
  const auto mixer = weft::models::mixer_blocks({.image_size = 28,
                                                 .patch = 7,
                                                 .in_channels = 1,
                                                 .num_classes = 10,
                                                 .layers = 8,
                                                 .width = 64});

  // Asked for this rank's blocks alone. A block's first weights must not depend on who makes it.
  const auto make = [&](int i) {
    torch::manual_seed(static_cast<uint64_t>(i));
    return mixer.blocks[static_cast<size_t>(i)].make({});
  };
  weft::parallel::PipelineOptions options{.micro_batches = 4};
  options.loss = [](const Tensors& y, const Tensors& t) {
    return torch::cross_entropy_loss(y[0], t[0]);
  };
  weft::Pipeline model(world, static_cast<int>(mixer.blocks.size()), make, options);
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-3));
  std::cout << "rank " << world.rank() << " has " << model.parameters().size()
            << " of the parameters\n";

  for (int epoch = 0; epoch < 2; ++epoch) {
    double loss = 0;
    for (int64_t at = 0; at < count; at += batch) {
      optimizer.zero_grad();
      loss = model.train_step({train.pixels.narrow(0, at, batch)},
                              {train.labels.narrow(0, at, batch)});
      model.clip_grad_norm(1.0);
      optimizer.step();
    }
    if (world.rank() == 0) std::cout << "epoch " << epoch + 1 << ": loss " << loss << '\n';
  }
  const Tensors logits = model.predict({train.pixels});
  if (!model.has_last_stage()) return 0;
  const auto right = logits[0].argmax(1).eq(train.labels).sum().item<int64_t>();
  std::cout << right << " of " << count << " images are right\n";
  return right > count * 9 / 10 ? 0 : 1;
}

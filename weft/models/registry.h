// Models by name, for recipes. A model of your own needs no entry here: weft works with any
// torch::nn::Module.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weft/parallel/compose/model.h"

namespace weft::models {

struct ModelOptions {
  std::string name = "cnn";
  std::int64_t in_channels = 1;
  std::int64_t image_size = 28;  // Height, and width unless image_width is set.
  std::int64_t num_classes = 10;
  std::vector<std::int64_t> hidden = {256, 128};  // Widths of the hidden layers (mlp).
  std::string stem = "7x7";                       // "7x7" or "3x3" (resnets).
  std::int64_t patch = 4;                // Side of a patch, a divisor of both sides (vit, mixer).
  std::int64_t layers = 4, width = 128;  // Number of blocks and their width (vit, mixer).
  std::int64_t heads = 4;                // Attention heads of a block (vit).
  std::string pool = "token";            // Input of the classifier: "token" or "mean" (vit).
  double dropout = 0;                    // Dropout probability (vit).
  std::int64_t image_width = 0;          // 0: image_size.

  std::int64_t wide() const { return image_width > 0 ? image_width : image_size; }
};

struct Model {
  std::shared_ptr<torch::nn::Module> module;
  // [n, in_channels, height, width] -> logits [n, num_classes]. Keeps the module alive.
  std::function<at::Tensor(const at::Tensor&)> forward;
};

// Makes the named model, initialized from libtorch's default generator. Throws Error(kBadConfig)
// for an unknown name or stem, naming the nearest, and for invalid sizes.
Model make_model(const ModelOptions& options);

// The same net as blocks for parallelize(), without a loss. The initial values differ from those of
// make_model(). This call makes no block yet. Throws as make_model().
parallel::BlockModel image_blocks(const ModelOptions& options);

// Name of a model and a one-line summary.
struct ModelEntry {
  const char* name;
  const char* summary;
};
std::vector<ModelEntry> list_models();

}  // namespace weft::models

// Models by name, for recipes. A model written elsewhere needs no entry: everything in weft takes
// any torch::nn::Module.
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
  std::int64_t image_size = 28;  // height and width
  std::int64_t num_classes = 10;
  std::vector<std::int64_t> hidden = {256, 128};  // mlp: widths between input and output
  std::string stem = "7x7";                       // resnets: "7x7" or "3x3"
  std::int64_t patch = 4;                // vit, mixer: side of a patch, which divides image_size
  std::int64_t layers = 4, width = 128;  // vit, mixer
  std::int64_t heads = 4;                // vit
  std::string pool = "token";            // vit: "token" or "mean"
  double dropout = 0;                    // vit
};

struct Model {
  std::shared_ptr<torch::nn::Module> module;
  // [n, in_channels, image_size, image_size] -> logits [n, num_classes]. Keeps the module alive.
  std::function<at::Tensor(const at::Tensor&)> forward;
};

// Makes the named model, initialized from libtorch's default generator. Throws Error(kBadConfig)
// for an unknown name or stem, naming the nearest, and for sizes that make no model.
Model make_model(const ModelOptions& options);

// The same net as blocks, for parallelize(): without a loss, and with initial values of their own.
// Makes nothing yet. Throws as make_model().
parallel::BlockModel image_blocks(const ModelOptions& options);

// The names, each with a line on what it is.
struct ModelEntry {
  const char* name;
  const char* summary;
};
std::vector<ModelEntry> list_models();

}  // namespace weft::models

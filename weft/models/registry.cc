#include "weft/models/registry.h"

#include <torch/types.h>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/base/text/words.h"
#include "weft/models/cnn.h"
#include "weft/models/mlp.h"
#include "weft/models/vision/mixer.h"
#include "weft/models/vision/resnet.h"
#include "weft/models/vision/vit.h"

namespace weft::models {
namespace {

template <typename Holder>
Model wrap(Holder model) {
  return {model.ptr(), [model](const at::Tensor& x) mutable { return model->forward(x); }};
}

std::string size_text(const ModelOptions& o) {
  return std::to_string(o.image_size) + "x" + std::to_string(o.wide());
}

MlpOptions mlp_options(const ModelOptions& o) {
  return {o.in_channels * o.image_size * o.wide(), o.hidden, o.num_classes};
}

CnnOptions cnn_options(const ModelOptions& o) {
  if (o.image_size < 4 || o.wide() < 4) {
    throw Error(Errc::kBadConfig, "model.name = \"cnn\" needs images of 4x4 or more; these are " +
                                      size_text(o) + "; use mlp");
  }
  return {o.in_channels, o.image_size, o.num_classes, o.image_width};
}

template <std::int64_t depth>
ResNetOptions resnet_options(const ModelOptions& o) {
  if (o.stem != "7x7" && o.stem != "3x3")
    throw Error(Errc::kBadConfig, "model.stem: must be \"7x7\" or \"3x3\", not \"" + o.stem + "\"");
  return {.depth = depth,
          .in_channels = o.in_channels,
          .num_classes = o.num_classes,
          .stem = o.stem == "7x7" ? Stem::k7x7 : Stem::k3x3};
}

void require_patches(const ModelOptions& o) {
  if (o.patch <= 0 || o.image_size % o.patch != 0 || o.wide() % o.patch != 0) {
    throw Error(Errc::kBadConfig, "model.patch: " + std::to_string(o.patch) +
                                      " does not divide images of " + size_text(o));
  }
  if (o.layers <= 0 || o.width <= 0)
    throw Error(Errc::kBadConfig, "model.layers and model.width must be at least 1");
}

VitOptions vit_options(const ModelOptions& o) {
  require_patches(o);
  if (o.heads <= 0 || o.width % o.heads != 0) {
    throw Error(Errc::kBadConfig, "model.heads: " + std::to_string(o.heads) +
                                      " do not divide a width of " + std::to_string(o.width));
  }
  if (o.pool != "token" && o.pool != "mean") {
    throw Error(Errc::kBadConfig,
                "model.pool: must be \"token\" or \"mean\", not \"" + o.pool + "\"");
  }
  if (o.dropout < 0 || o.dropout >= 1)
    throw Error(Errc::kBadConfig, "model.dropout must be in [0, 1)");
  VitOptions vit{.image_size = o.image_size,
                 .image_width = o.image_width,
                 .patch = o.patch,
                 .in_channels = o.in_channels,
                 .num_classes = o.num_classes};
  vit.layers = o.layers;
  vit.width = o.width;
  vit.heads = o.heads;
  vit.pool = o.pool == "token" ? VitPool::kToken : VitPool::kMean;
  vit.dropout = o.dropout;
  return vit;
}

MixerOptions mixer_options(const ModelOptions& o) {
  require_patches(o);
  MixerOptions mixer{.image_size = o.image_size,
                     .image_width = o.image_width,
                     .patch = o.patch,
                     .in_channels = o.in_channels,
                     .num_classes = o.num_classes};
  mixer.layers = o.layers;
  mixer.width = o.width;
  return mixer;
}

struct Maker {
  ModelEntry entry;
  Model (*make)(const ModelOptions&);
  parallel::BlockModel (*blocks)(const ModelOptions&);
};

template <std::int64_t depth>
constexpr Maker resnet(const char* name, const char* summary) {
  return {{name, summary},
          [](const ModelOptions& o) { return wrap(ResNet(resnet_options<depth>(o))); },
          [](const ModelOptions& o) { return resnet_blocks(resnet_options<depth>(o)); }};
}

constexpr Maker kMakers[] = {
    {{"mlp", "multilayer perceptron, 784-256-128-10 unless set"},
     [](const ModelOptions& o) { return wrap(Mlp(mlp_options(o))); },
     [](const ModelOptions& o) { return mlp_blocks(mlp_options(o)); }},
    {{"cnn", "two 3x3 convolutions (32, 64), each with max-pooling, and two linear layers"},
     [](const ModelOptions& o) { return wrap(Cnn(cnn_options(o))); },
     [](const ModelOptions& o) { return cnn_blocks(cnn_options(o)); }},
    resnet<18>("resnet18", "ResNet-18 with the 7x7 or the 3x3 stem"),
    resnet<34>("resnet34", "ResNet-34, as resnet18"),
    resnet<50>("resnet50", "ResNet-50, of bottleneck blocks"),
    resnet<101>("resnet101", "ResNet-101, of bottleneck blocks"),
    resnet<152>("resnet152", "ResNet-152, of bottleneck blocks"),
    {{"vit", "Vision Transformer; patch, layers, width and heads can be set"},
     [](const ModelOptions& o) { return wrap(Vit(vit_options(o))); },
     [](const ModelOptions& o) { return vit_blocks(vit_options(o)); }},
    {{"mixer", "MLP-Mixer; patch, layers and width can be set"},
     [](const ModelOptions& o) { return wrap(Mixer(mixer_options(o))); },
     [](const ModelOptions& o) { return mixer_blocks(mixer_options(o)); }},
};

const Maker& maker_of(const ModelOptions& options) {
  std::vector<std::string> names;
  for (const Maker& maker : kMakers) names.emplace_back(maker.entry.name);
  for (const Maker& maker : kMakers) {
    if (options.name != maker.entry.name) continue;
    bool positive = options.in_channels > 0 && options.image_size > 0 && options.image_width >= 0 &&
                    options.num_classes > 0;
    for (const std::int64_t width : options.hidden) positive = positive && width > 0;
    if (!positive)
      throw Error(Errc::kBadConfig,
                  "model: channels, image size, classes and widths must be at least 1");
    return maker;
  }
  const auto near = nearest(options.name, names);
  throw Error(Errc::kBadConfig, "model.name: unknown model \"" + options.name + "\"" +
                                    (near ? "; did you mean \"" + *near + "\"? " : "; ") +
                                    "There are " + joined(names));
}

}  // namespace

Model make_model(const ModelOptions& options) { return maker_of(options).make(options); }

parallel::BlockModel image_blocks(const ModelOptions& options) {
  return maker_of(options).blocks(options);
}

std::vector<ModelEntry> list_models() {
  std::vector<ModelEntry> entries;
  for (const Maker& maker : kMakers) entries.push_back(maker.entry);
  return entries;
}

}  // namespace weft::models

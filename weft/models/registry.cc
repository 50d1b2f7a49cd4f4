#include "weft/models/registry.h"

#include <torch/torch.h>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/models/cnn.h"
#include "weft/models/mlp.h"
#include "weft/models/resnet.h"

namespace weft::models {
namespace {

template <typename Holder>
Model wrap(Holder model) {
  return {model.ptr(), [model](const at::Tensor& x) mutable { return model->forward(x); }};
}

Model make_mlp(const ModelOptions& o) {
  return wrap(Mlp(MlpOptions{o.in_channels * o.image_size * o.image_size, o.hidden, o.num_classes}));
}

Model make_cnn(const ModelOptions& o) {
  if (o.image_size < 4) throw Error(Errc::kBadConfig, "model.image_size: cnn needs images of 4x4 or more");
  return wrap(Cnn(CnnOptions{o.in_channels, o.image_size, o.num_classes}));
}

Model make_resnet18(const ModelOptions& o) {
  if (o.stem != "7x7" && o.stem != "3x3") throw Error(Errc::kBadConfig, "model.stem: is \"7x7\" or \"3x3\", not \"" + o.stem + "\"");
  return wrap(ResNet18(ResNetOptions{o.in_channels, o.num_classes, o.stem == "7x7" ? Stem::k7x7 : Stem::k3x3}));
}

struct Maker {
  ModelEntry entry;
  Model (*make)(const ModelOptions&);
};

constexpr Maker kMakers[] = {
    {{"mlp", "multilayer perceptron, 784-256-128-10 unless set"}, make_mlp},
    {{"cnn", "two 3x3 convolutions (32, 64), each with max-pooling, and two linear layers"}, make_cnn},
    {{"resnet18", "ResNet-18 with the 7x7 or the 3x3 stem"}, make_resnet18},
};

}  // namespace

Model make_model(const ModelOptions& options) {
  std::vector<std::string> names;
  for (const Maker& maker : kMakers) names.emplace_back(maker.entry.name);
  for (const Maker& maker : kMakers) {
    if (options.name != maker.entry.name) continue;
    bool positive = options.in_channels > 0 && options.image_size > 0 && options.num_classes > 0;
    for (const std::int64_t width : options.hidden) positive = positive && width > 0;
    if (!positive) throw Error(Errc::kBadConfig, "model: channels, image size, classes and widths are at least 1");
    return maker.make(options);
  }
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  const auto near = nearest(options.name, names);
  throw Error(Errc::kBadConfig, "model.name: unknown model \"" + options.name + "\"" +
                                    (near ? "; did you mean \"" + *near + "\"? " : "; ") + "There are " + all);
}

std::vector<ModelEntry> list_models() {
  std::vector<ModelEntry> entries;
  for (const Maker& maker : kMakers) entries.push_back(maker.entry);
  return entries;
}

}  // namespace weft::models

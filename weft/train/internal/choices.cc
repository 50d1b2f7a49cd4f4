#include "weft/train/internal/choices.h"

#include <ATen/Parallel.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <set>

#include "weft/base/error.h"

namespace weft::train::internal {

data::SetOptions set_options(const Config& config) {
  return {config.get_string("data.name"), config.get_string("data.dir"), static_cast<std::uint64_t>(config.get_int("data.seed"))};
}

data::AugmentOptions augment_options(const Config& config, const data::ImageSet& train) {
  const auto stats = data::channel_stats(train);
  data::AugmentOptions options;
  options.crop_padding = static_cast<int>(config.get_int("data.crop_padding"));
  options.flip = config.get_bool("data.flip");
  options.mean = stats.mean;
  options.std = stats.std;
  options.seed = static_cast<std::uint64_t>(config.get_int("train.seed"));
  return options;
}

models::ModelOptions model_options(const Config& config, const data::ImageSet& train) {
  models::ModelOptions options;
  options.name = config.get_string("model.name");
  options.in_channels = train.channels;
  options.image_size = train.height;
  options.num_classes = train.num_classes;
  options.hidden = config.get_ints("model.hidden");
  options.stem = config.get_string("model.stem");
  options.patch = config.get_int("model.patch");
  options.layers = config.get_int("model.layers");
  options.width = config.get_int("model.width");
  options.heads = config.get_int("model.heads");
  options.pool = config.get_string("model.pool");
  options.dropout = config.get_double("model.dropout");
  return options;
}

models::LossOptions loss_options(const Config& config) {
  return {models::parse_loss(config.get_string("train.loss")), config.get_double("train.label_smoothing")};
}

parallel::DataParallelOptions parallel_options(const Config& config) {
  parallel::DataParallelOptions options;
  options.weights = config.get_string("parallel.weights");
  options.codec = config.get_string("parallel.codec");
  options.overlap_forward = config.get_bool("parallel.overlap_forward");
  options.bucket_bytes = static_cast<std::size_t>(config.get_double("parallel.bucket_mb") * (1 << 20));
  if (config.get_bool("train.reproducible")) {
    options.average = parallel::DataParallelOptions::Average::kSum;  // micro-shards divide by the global batch themselves
    options.sync_buffers = false;                                    // and average the buffers
  }
  return options;
}

parallel::OptimizerSpec optimizer_choice(const Config& config) {
  const auto& name = config.get_string("optimizer.name");
  const double lr = config.get_double("optimizer.lr"), momentum = config.get_double("optimizer.momentum");
  const double eps = config.get_double("optimizer.eps"), decay = config.get_double("optimizer.weight_decay");
  const auto& betas = config.get_doubles("optimizer.betas");
  const kernels::Regulariser coupled{config.get_double("optimizer.l1"), decay};
  parallel::OptimizerSpec spec;
  if (name == "sgd") spec.rule = kernels::Sgd{lr, momentum, 0.0, config.get_bool("optimizer.nesterov"), coupled};
  if (name == "rmsprop") spec.rule = kernels::RmsProp{lr, config.get_double("optimizer.alpha"), eps, momentum, false, coupled};
  if (name == "adagrad") spec.rule = kernels::Adagrad{lr, 0.0, eps, coupled};
  if (name == "adam") spec.rule = kernels::Adam{lr, betas[0], betas[1], eps, 0.0, false, coupled};
  if (name == "adamw") spec.rule = kernels::Adam{lr, betas[0], betas[1], eps, decay, false, {coupled.l1, 0.0}};
  spec.max_grad_norm = config.get_double("optimizer.max_grad_norm");
  return spec;
}

parallel::OptimizerSpec optimizer_choice(const Config& config, const torch::nn::Module& module) {
  parallel::OptimizerSpec spec = optimizer_choice(config);
  if (!config.get_bool("optimizer.decay_vectors")) {
    std::set<std::string> vectors;
    for (const auto& parameter : module.named_parameters()) {
      if (parameter.value().dim() <= 1) vectors.insert(parameter.key());
    }
    spec.no_decay = [vectors](const std::string& parameter) { return vectors.count(parameter) > 0; };
  }
  return spec;
}

void settle_order(const Config& config, const Group& world) {
  if (!config.get_bool("train.reproducible")) return;
  if (!world.has_ordered_sums()) {
    throw Error(Errc::kBadConfig,
                "train.reproducible adds gradients in one order, and this group in another that its transport chose; make the group with "
                "InitOptions::ordered_sums, as weft train does");
  }
  at::set_num_threads(1);
}

optim::LearningRate learning_rate(const Config& config, const Batches& batches) {
  using Shape = optim::LearningRate::Shape;
  const auto& name = config.get_string("schedule.name");
  const double period = config.get_double("schedule.period_epochs");
  optim::LearningRate rate;
  rate.base = batches.base_rate;
  rate.shape = name == "cosine" ? Shape::kCosine : name == "step" ? Shape::kStep : Shape::kConstant;
  rate.period = period > 0 ? period : static_cast<double>(std::max<std::int64_t>(1, config.get_int("train.epochs")));
  rate.gamma = config.get_double("schedule.gamma");
  rate.minimum = config.get_double("schedule.minimum");
  rate.warmup = config.get_double("schedule.warmup_epochs");
  return rate;
}

}  // namespace weft::train::internal

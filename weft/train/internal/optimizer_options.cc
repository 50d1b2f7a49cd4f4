#include "weft/train/internal/optimizer_options.h"

#include "weft/base/error.h"

namespace weft::train::internal {
namespace {

void take_whole_tensor_rule(const optim::UpdateRule& rule, OptimizerKeys& keys) {
  keys.name = optim::name_of(rule);
  const auto take_averages = [&](const auto& own) {
    keys.betas = {own.beta1, own.beta2};
    keys.eps = own.eps;
    keys.weight_decay = own.weight_decay;
  };
  if (const auto* lars = std::get_if<optim::Lars>(&rule)) {
    keys.momentum = lars->momentum;
    keys.nesterov = lars->nesterov;
    keys.trust = lars->trust;
    keys.weight_decay = lars->weight_decay;
  } else if (const auto* lamb = std::get_if<optim::Lamb>(&rule)) {
    take_averages(*lamb);
  } else if (const auto* adafactor = std::get_if<optim::Adafactor>(&rule)) {
    keys.update_clip = adafactor->clip;
    keys.weight_decay = adafactor->weight_decay;
  } else if (const auto* muon = std::get_if<optim::Muon>(&rule)) {
    keys.momentum = muon->momentum;
    keys.adam_lr = muon->adam_lr;
    take_averages(*muon);
  }
}

}  // namespace

void check_optimizer_keys(const Config& config) {
  if (config.get_doubles("optimizer.betas").size() != 2)
    throw Error(Errc::kBadConfig,
                "optimizer.betas (" + config.origin("optimizer.betas") + ") needs two numbers");
  const std::string name = config.get_string("optimizer.name");
  if ((name == "sgd" || name == "lars") && config.get_bool("optimizer.nesterov") &&
      config.get_double("optimizer.momentum") == 0) {
    throw Error(Errc::kBadConfig, "optimizer.nesterov (" + config.origin("optimizer.nesterov") +
                                      ") needs an optimizer.momentum above 0");
  }
}

engine::OptimizerSpec optimizer_of(const OptimizerKeys& keys) {
  const auto& [name, lr, momentum, nesterov, trust, update_clip, adam_lr, alpha, betas, eps, decay,
               l1, max_grad_norm] = keys;
  const double beta1 = betas.at(0), beta2 = betas.at(1);
  const kernels::Regularizer coupled{l1, decay}, l1_only{l1, 0.0};
  engine::OptimizerSpec spec;
  spec.max_grad_norm = max_grad_norm;
  if (name == "sgd") spec.rule = kernels::Sgd{lr, momentum, 0.0, nesterov, coupled};
  if (name == "rmsprop") spec.rule = kernels::RmsProp{lr, alpha, eps, momentum, false, coupled};
  if (name == "adagrad") spec.rule = kernels::Adagrad{lr, 0.0, eps, coupled};
  if (name == "adam") spec.rule = kernels::Adam{lr, beta1, beta2, eps, 0.0, false, coupled};
  if (name == "adamw") spec.rule = kernels::Adam{lr, beta1, beta2, eps, decay, false, l1_only};
  if (name == "lion") spec.rule = kernels::Lion{lr, beta1, beta2, decay, l1_only};
  if (name == "lars")
    spec.rule = optim::Lars{.lr = lr,
                            .momentum = momentum,
                            .trust = trust,
                            .nesterov = nesterov,
                            .weight_decay = decay};
  if (name == "lamb") spec.rule = optim::Lamb{lr, beta1, beta2, eps, decay};
  if (name == "adafactor")
    spec.rule = optim::Adafactor{.lr = lr, .clip = update_clip, .weight_decay = decay};
  if (name == "muon")
    spec.rule = optim::Muon{.lr = lr,
                            .momentum = momentum,
                            .weight_decay = decay,
                            .adam_lr = adam_lr,
                            .beta1 = beta1,
                            .beta2 = beta2,
                            .eps = eps};
  return spec;
}

OptimizerKeys keys_of(const engine::OptimizerSpec& spec) {
  OptimizerKeys keys;
  keys.lr = optim::lr_of(spec.rule);
  keys.max_grad_norm = spec.max_grad_norm;
  const auto take_regularizer = [&](const kernels::Regularizer& with) {
    keys.l1 = with.l1;
    keys.weight_decay = with.l2;
  };
  if (const auto* sgd = std::get_if<kernels::Sgd>(&spec.rule)) {
    keys.name = "sgd";
    keys.momentum = sgd->momentum;
    keys.nesterov = sgd->nesterov;
    take_regularizer(sgd->regularizer);
  } else if (const auto* rms = std::get_if<kernels::RmsProp>(&spec.rule)) {
    keys.name = "rmsprop";
    keys.alpha = rms->alpha;
    keys.momentum = rms->momentum;
    keys.eps = rms->eps;
    take_regularizer(rms->regularizer);
  } else if (const auto* adagrad = std::get_if<kernels::Adagrad>(&spec.rule)) {
    keys.name = "adagrad";
    keys.eps = adagrad->eps;
    take_regularizer(adagrad->regularizer);
  } else if (const auto* adam = std::get_if<kernels::Adam>(&spec.rule)) {
    const bool decoupled = adam->decoupled_decay != 0;
    take_regularizer(adam->regularizer);
    keys.name = decoupled ? "adamw" : "adam";
    keys.eps = adam->eps;
    keys.betas = {adam->beta1, adam->beta2};
    if (decoupled) keys.weight_decay = adam->decoupled_decay;
  } else if (const auto* lion = std::get_if<kernels::Lion>(&spec.rule)) {
    take_regularizer(lion->regularizer);
    keys.name = "lion";
    keys.betas = {lion->beta1, lion->beta2};
    keys.weight_decay = lion->decoupled_decay;
  } else {
    take_whole_tensor_rule(spec.rule, keys);
  }
  return keys;
}

}  // namespace weft::train::internal

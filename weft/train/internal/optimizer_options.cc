#include "weft/train/internal/optimizer_options.h"

#include "weft/base/error.h"

namespace weft::train::internal {
namespace {

void write_whole_tensor_rule(const optim::UpdateRule& rule, ConfigWriter& to) {
  to.set("optimizer.name", optim::name_of(rule));
  const auto averages = [&](const auto& own) {
    to.set("optimizer.betas", {json_number(own.beta1), json_number(own.beta2)});
    to.set("optimizer.eps", own.eps);
    to.set("optimizer.weight_decay", own.weight_decay);
  };
  if (const auto* lars = std::get_if<optim::Lars>(&rule)) {
    to.set("optimizer.momentum", lars->momentum);
    to.set("optimizer.nesterov", lars->nesterov);
    to.set("optimizer.trust", lars->trust);
    to.set("optimizer.weight_decay", lars->weight_decay);
  } else if (const auto* lamb = std::get_if<optim::Lamb>(&rule)) {
    averages(*lamb);
  } else if (const auto* adafactor = std::get_if<optim::Adafactor>(&rule)) {
    to.set("optimizer.update_clip", adafactor->clip);
    to.set("optimizer.weight_decay", adafactor->weight_decay);
  } else if (const auto* muon = std::get_if<optim::Muon>(&rule)) {
    to.set("optimizer.momentum", muon->momentum);
    to.set("optimizer.adam_lr", muon->adam_lr);
    averages(*muon);
  }
}

}  // namespace

parallel::OptimizerSpec optimizer_of(const Config& config) {
  const auto& name = config.get_string("optimizer.name");
  const double lr = config.get_double("optimizer.lr"),
               momentum = config.get_double("optimizer.momentum");
  const double eps = config.get_double("optimizer.eps"),
               decay = config.get_double("optimizer.weight_decay");
  const auto& betas = config.get_doubles("optimizer.betas");
  if (betas.size() != 2)
    throw Error(Errc::kBadConfig,
                "optimizer.betas (" + config.origin("optimizer.betas") + ") needs two numbers");
  const kernels::Regularizer coupled{config.get_double("optimizer.l1"), decay};
  parallel::OptimizerSpec spec;
  if (name == "sgd")
    spec.rule = kernels::Sgd{lr, momentum, 0.0, config.get_bool("optimizer.nesterov"), coupled};
  if (name == "rmsprop")
    spec.rule =
        kernels::RmsProp{lr, config.get_double("optimizer.alpha"), eps, momentum, false, coupled};
  if (name == "adagrad") spec.rule = kernels::Adagrad{lr, 0.0, eps, coupled};
  if (name == "adam") spec.rule = kernels::Adam{lr, betas[0], betas[1], eps, 0.0, false, coupled};
  if (name == "adamw")
    spec.rule = kernels::Adam{lr, betas[0], betas[1], eps, decay, false, {coupled.l1, 0.0}};
  if (name == "lion") spec.rule = kernels::Lion{lr, betas[0], betas[1], decay, {coupled.l1, 0.0}};
  if (name == "lars")
    spec.rule = optim::Lars{.lr = lr,
                            .momentum = momentum,
                            .trust = config.get_double("optimizer.trust"),
                            .nesterov = config.get_bool("optimizer.nesterov"),
                            .weight_decay = decay};
  if (name == "lamb") spec.rule = optim::Lamb{lr, betas[0], betas[1], eps, decay};
  if (name == "adafactor") {
    spec.rule = optim::Adafactor{
        .lr = lr, .clip = config.get_double("optimizer.update_clip"), .weight_decay = decay};
  }
  if (name == "muon")
    spec.rule = optim::Muon{.lr = lr,
                            .momentum = momentum,
                            .weight_decay = decay,
                            .adam_lr = config.get_double("optimizer.adam_lr"),
                            .beta1 = betas[0],
                            .beta2 = betas[1],
                            .eps = eps};
  spec.max_grad_norm = config.get_double("optimizer.max_grad_norm");
  return spec;
}

void write_optimizer(const parallel::OptimizerSpec& spec, ConfigWriter& to) {
  to.set("optimizer.lr", optim::lr_of(spec.rule));
  to.set("optimizer.max_grad_norm", spec.max_grad_norm);
  const auto regular = [&](const kernels::Regularizer& with) {
    to.set("optimizer.l1", with.l1);
    to.set("optimizer.weight_decay", with.l2);
  };
  if (const auto* sgd = std::get_if<kernels::Sgd>(&spec.rule)) {
    to.set("optimizer.name", "sgd");
    to.set("optimizer.momentum", sgd->momentum);
    to.set("optimizer.nesterov", sgd->nesterov);
    regular(sgd->regularizer);
  } else if (const auto* rms = std::get_if<kernels::RmsProp>(&spec.rule)) {
    to.set("optimizer.name", "rmsprop");
    to.set("optimizer.alpha", rms->alpha);
    to.set("optimizer.momentum", rms->momentum);
    to.set("optimizer.eps", rms->eps);
    regular(rms->regularizer);
  } else if (const auto* adagrad = std::get_if<kernels::Adagrad>(&spec.rule)) {
    to.set("optimizer.name", "adagrad");
    to.set("optimizer.eps", adagrad->eps);
    regular(adagrad->regularizer);
  } else if (const auto* adam = std::get_if<kernels::Adam>(&spec.rule)) {
    const bool decoupled = adam->decoupled_decay != 0;
    regular(adam->regularizer);
    to.set("optimizer.name", decoupled ? "adamw" : "adam");
    to.set("optimizer.eps", adam->eps);
    to.set("optimizer.betas", {json_number(adam->beta1), json_number(adam->beta2)});
    if (decoupled) to.set("optimizer.weight_decay", adam->decoupled_decay);
  } else if (const auto* lion = std::get_if<kernels::Lion>(&spec.rule)) {
    regular(lion->regularizer);
    to.set("optimizer.name", "lion");
    to.set("optimizer.betas", {json_number(lion->beta1), json_number(lion->beta2)});
    to.set("optimizer.weight_decay", lion->decoupled_decay);
  } else {
    write_whole_tensor_rule(spec.rule, to);
  }
}

}  // namespace weft::train::internal

// The entry of a torch::optim optimizer. Tensors are called "<number of the parameter>.exp_avg" and
// the like. libtorch makes the state of a parameter in its first step, so it may be missing. The
// numbers among the options of each group of parameters are saved, too: a program may change them
// during training, and a new process would begin with the first ones.
#include <ATen/ATen.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "weft/elastic/entry.h"

namespace weft::elastic {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;

// The fields of a parameter's state.
struct Fields {
  std::vector<std::pair<const char*, at::Tensor*>> tensors;
  std::int64_t* step = nullptr;
};

Fields fields_of(torch::optim::SGDParamState& of) {
  return {{{"momentum_buffer", &of.momentum_buffer()}}};
}
template <class AdamState>
Fields fields_of_adam(AdamState& of) {
  return {{{"exp_avg", &of.exp_avg()},
           {"exp_avg_sq", &of.exp_avg_sq()},
           {"max_exp_avg_sq", &of.max_exp_avg_sq()}},
          &of.step()};
}
Fields fields_of(torch::optim::AdamParamState& of) { return fields_of_adam(of); }
Fields fields_of(torch::optim::AdamWParamState& of) { return fields_of_adam(of); }
Fields fields_of(torch::optim::RMSpropParamState& of) {
  return {{{"square_avg", &of.square_avg()},
           {"momentum_buffer", &of.momentum_buffer()},
           {"grad_avg", &of.grad_avg()}},
          &of.step()};
}
Fields fields_of(torch::optim::AdagradParamState& of) { return {{{"sum", &of.sum()}}, &of.step()}; }

// Options of a group of parameters, besides the learning rate.
using Numbers = std::vector<std::pair<const char*, double*>>;

Numbers numbers_of(torch::optim::SGDOptions& of) {
  return {{"momentum", &of.momentum()},
          {"dampening", &of.dampening()},
          {"weight_decay", &of.weight_decay()}};
}
template <class AdamOptions>
Numbers numbers_of_adam(AdamOptions& of) {
  return {{"beta1", &std::get<0>(of.betas())},
          {"beta2", &std::get<1>(of.betas())},
          {"eps", &of.eps()},
          {"weight_decay", &of.weight_decay()}};
}
Numbers numbers_of(torch::optim::AdamOptions& of) { return numbers_of_adam(of); }
Numbers numbers_of(torch::optim::AdamWOptions& of) { return numbers_of_adam(of); }
Numbers numbers_of(torch::optim::RMSpropOptions& of) {
  return {{"alpha", &of.alpha()},
          {"eps", &of.eps()},
          {"weight_decay", &of.weight_decay()},
          {"momentum", &of.momentum()}};
}
Numbers numbers_of(torch::optim::AdagradOptions& of) {
  return {{"lr_decay", &of.lr_decay()}, {"weight_decay", &of.weight_decay()}, {"eps", &of.eps()}};
}

// The state and the options of the parameters of one type of optimizer.
struct Kind {
  std::unique_ptr<OptimizerParamState> (*make)();
  Fields (*fields)(OptimizerParamState& of);
  Numbers (*numbers)(torch::optim::OptimizerOptions& of);
};

template <class ParamState, class GroupOptions>
Kind kind() {
  return {[]() -> std::unique_ptr<OptimizerParamState> { return std::make_unique<ParamState>(); },
          [](OptimizerParamState& of) { return fields_of(static_cast<ParamState&>(of)); },
          [](torch::optim::OptimizerOptions& of) {
            return numbers_of(static_cast<GroupOptions&>(of));
          }};
}

Kind kind_of(const Optimizer& optimizer) {
  const auto is = [&]<class Type>(const Type*) {
    return dynamic_cast<const Type*>(&optimizer) != nullptr;
  };
  using namespace torch::optim;
  if (is(static_cast<SGD*>(nullptr))) return kind<SGDParamState, SGDOptions>();
  if (is(static_cast<Adam*>(nullptr))) return kind<AdamParamState, AdamOptions>();
  if (is(static_cast<AdamW*>(nullptr))) return kind<AdamWParamState, AdamWOptions>();
  if (is(static_cast<RMSprop*>(nullptr))) return kind<RMSpropParamState, RMSpropOptions>();
  if (is(static_cast<Adagrad*>(nullptr))) return kind<AdagradParamState, AdagradOptions>();
  throw Error(
      Errc::kInvalidArgument,
      "elastic: the state of this optimizer cannot be copied; SGD, Adam, AdamW, RMSprop and "
      "Adagrad can, or register functions with State::add_entry()");
}

class OptimizerEntry {
 public:
  explicit OptimizerEntry(Optimizer& optimizer)
      : optimizer_(optimizer), kind_(kind_of(optimizer)) {}

  Values save() const {
    Values values;
    for (std::size_t g = 0; g < optimizer_.param_groups().size(); ++g) {
      auto& options = optimizer_.param_groups()[g].options();
      values.texts[name_in("lr", g)] = text_of(options.get_lr());
      for (const auto& [name, number] : kind_.numbers(options))
        values.texts[name_in(name, g)] = text_of(*number);
    }
    each_param([&](const std::string& number, const at::Tensor& param) {
      const auto found = optimizer_.state().find(param.unsafeGetTensorImpl());
      if (found == optimizer_.state().end()) return;
      const Fields fields = kind_.fields(*found->second);
      for (const auto& [field, tensor] : fields.tensors) {
        if (tensor->defined())
          values.equal.push_back(checkpoint::whole_slice(number + "." + field, *tensor));
      }
      values.texts[number] = text_of(fields.step != nullptr ? *fields.step : std::int64_t{0});
    });
    return values;
  }

  void load(const Loading& from) const {
    for (std::size_t g = 0; g < optimizer_.param_groups().size(); ++g) {
      auto& options = optimizer_.param_groups()[g].options();
      options.set_lr(number_at<double>(from.texts, name_in("lr", g)));
      for (const auto& [name, number] : kind_.numbers(options)) {
        if (from.texts.contains(name_in(name, g)))  // else the state is of an older version
          *number = number_at<double>(from.texts, name_in(name, g));
      }
    }
    optimizer_.state().clear();
    checkpoint::Slices wanted;
    each_param([&](const std::string& number, const at::Tensor& param) {
      if (!from.texts.contains(number)) return;
      auto state = kind_.make();
      const Fields fields = kind_.fields(*state);
      if (fields.step != nullptr) *fields.step = number_at<std::int64_t>(from.texts, number);
      for (const auto& [field, tensor] : fields.tensors) {
        if (!from.tensors.has(number + "." + field)) continue;
        *tensor = at::empty_like(param.detach());
        wanted.push_back(checkpoint::whole_slice(number + "." + field, *tensor));
      }
      optimizer_.state()[param.unsafeGetTensorImpl()] = std::move(state);
    });
    from.tensors.fill(wanted);
  }

  std::string outline() const {
    std::int64_t count = 0;
    each_param([&](const std::string&, const at::Tensor&) { ++count; });
    return "optimizer of " + std::to_string(count) + " parameters; ";
  }

 private:
  static std::string name_in(const std::string& option, std::size_t group) {
    return option + "." + std::to_string(group);
  }

  template <class Visit>
  void each_param(const Visit& visit) const {
    std::int64_t number = 0;
    for (auto& group : optimizer_.param_groups()) {
      for (const at::Tensor& param : group.params()) visit(std::to_string(number++), param);
    }
  }

  Optimizer& optimizer_;
  const Kind kind_;
};

}  // namespace

Entry entry_of(torch::optim::Optimizer& optimizer) {
  const OptimizerEntry entry(optimizer);
  return {.object = &optimizer,
          .save = [entry] { return entry.save(); },
          .load = [entry](const Loading& from) { entry.load(from); },
          .outline = [entry] { return entry.outline(); }};
}

}  // namespace weft::elastic

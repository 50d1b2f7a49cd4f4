#include "weft/parallel/batch_norm/sync_batch_norm.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <map>
#include <string>
#include <vector>

namespace weft::parallel {
namespace {

namespace nn = torch::nn;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Statistics of each channel over all ranks.
struct Moments {
  double count = 0;      // values of each channel
  at::Tensor mean, var;  // [channels], biased, in the input's type
};

// Reshapes per-channel values so that they broadcast over `like`.
at::Tensor by_channel(const at::Tensor& values, const at::Tensor& like) {
  std::vector<int64_t> shape(static_cast<std::size_t>(like.dim()), 1);
  shape[1] = values.numel();
  return values.to(like.scalar_type()).view(shape);
}

// Each rank sends count, mean and sum of squared deviations of its own batch. All ranks merge them
// in rank order, two at a time (Chan, Golub, LeVeque 1979, eq. 2.1), in float64. Plain sums of
// squares would cancel if the mean is large compared with the deviation.
Moments joint_moments(const at::Tensor& x, const Group& group) {
  const int64_t channels = x.size(1);
  const auto f64 = x.options().dtype(at::kDouble).requires_grad(false);
  at::Tensor mine = at::zeros({1, 1 + 2 * channels}, f64);
  if (x.numel() > 0) {
    const auto [mean, var] = at::batch_norm_update_stats(x, {}, {}, 0.0);
    const double count = static_cast<double>(x.numel() / channels);
    mine[0][0] = count;
    mine[0].slice(0, 1, 1 + channels).copy_(mean);
    mine[0].slice(0, 1 + channels).copy_(var.to(at::kDouble) * count);
  }
  at::Tensor all = at::empty({group.size(), 1 + 2 * channels}, f64);
  group.all_gather(all, mine);

  Moments joint;
  at::Tensor mean = at::zeros({channels}, f64), squares = at::zeros({channels}, f64);
  const at::Tensor counts = all.select(1, 0).cpu();
  for (int rank = 0; rank < group.size(); ++rank) {
    const double count = counts[rank].item<double>();
    if (count == 0) continue;
    const double total = joint.count + count;
    const at::Tensor delta = all[rank].slice(0, 1, 1 + channels) - mean;
    mean += delta * (count / total);
    squares += all[rank].slice(0, 1 + channels) + delta.square() * (joint.count * count / total);
    joint.count = total;
  }
  WEFT_REQUIRE(joint.count > 1,
               "SyncBatchNorm: training needs more than one value per channel over all ranks, but "
               "there are " +
                   std::to_string(joint.count));
  joint.mean = mean.to(x.scalar_type());
  joint.var = (squares / joint.count).to(x.scalar_type());
  return joint;
}

// Values that backward needs besides tensors.
struct NormTerms final : torch::CustomClassHolder {
  NormTerms(Group group_, double count_, double weight_, double eps_)
      : group(std::move(group_)), count(count_), weight(weight_), eps(eps_) {}
  Group group;
  double count;   // values per channel over all ranks
  double weight;  // weight of this rank's loss, up to a factor that is the same on all ranks
  double eps;
};

struct Normalize final : torch::autograd::Function<Normalize> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, const Moments& moments,
                            const c10::intrusive_ptr<NormTerms>& terms) {
    context->save_for_backward({x, weight.value_or(at::Tensor()), moments.mean, moments.var});
    context->saved_data["terms"] = c10::IValue::make_capsule(terms);
    // Uses the evaluation kernel, with the statistics of all batches as running statistics.
    return std::get<0>(at::native_batch_norm(x, weight, bias, moments.mean, moments.var,
                                             /*training=*/false, 0.0, terms->eps));
  }

  // dx = weight/std * (dy - sum(dy)/N - (x - mean)/std² * sum(dy (x - mean))/N), sums over all
  // ranks' N values (Ioffe, Szegedy 2015, 3).
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    WEFT_REQUIRE(!at::GradMode::is_enabled(),
                 "SyncBatchNorm: backward of backward (create_graph) is not supported");
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &mean = saved[2], &var = saved[3];
    const auto terms =
        c10::static_intrusive_pointer_cast<NormTerms>(context->saved_data["terms"].toCapsule());
    const int64_t channels = x.size(1);
    const at::Tensor dy = gradients[0].contiguous(x.suggest_memory_format());
    const at::Tensor invstd = (var.to(at::kDouble) + terms->eps).rsqrt();

    at::Tensor d_weight = at::zeros_like(mean), d_bias = at::zeros_like(mean);
    if (x.numel() > 0) {
      // The backward of the same kernel computes sum(dy (x - mean)) / std and sum(dy) in one pass.
      std::tie(std::ignore, d_weight, d_bias) = at::native_batch_norm_backward(
          dy, x, weight, mean, var, mean, invstd.to(mean.scalar_type()), /*train=*/false,
          terms->eps, {false, true, true});
    }
    at::Tensor dx;
    if (context->needs_input_grad(0)) {
      at::Tensor sums = at::cat({d_bias.to(at::kDouble), d_weight.to(at::kDouble)}) * terms->weight;
      terms->group.all_reduce(sums);
      // Divides by the weight that the average over the ranks will apply to this result.
      sums /= terms->count * (terms->weight > 0 ? terms->weight : 1.0);
      const at::Tensor scale = weight.defined() ? weight.to(at::kDouble) * invstd : invstd;
      const at::Tensor slope = scale * invstd * sums.slice(0, channels),
                       offset = scale * sums.slice(0, 0, channels);
      dx = at::sub(x, by_channel(mean, x))
               .mul_(by_channel(-slope, x))
               .sub_(by_channel(offset, x))
               .addcmul_(dy, by_channel(scale, x));
    }
    if (!weight.defined()) return {dx, {}, {}, {}, {}};
    return {dx, d_weight, d_bias, {}, {}};
  }
};

bool is_batch_norm(const nn::Module& module) {
  return module.as<nn::BatchNorm1d>() != nullptr || module.as<nn::BatchNorm2d>() != nullptr ||
         module.as<nn::BatchNorm3d>() != nullptr;
}

nn::BatchNormOptions options_of(const nn::Module& batch_norm) {
  if (const auto* one = batch_norm.as<nn::BatchNorm1d>()) return one->options;
  if (const auto* two = batch_norm.as<nn::BatchNorm2d>()) return two->options;
  return batch_norm.as<nn::BatchNorm3d>()->options;
}

// The normalization layers of a module.
struct Found {
  std::vector<std::shared_ptr<SyncBatchNormImpl>> synchronous;
  std::vector<nn::SequentialImpl*> sequentials;  // Sequentials that contain batch norms
  std::string unreachable;                       // names of batch norms that are typed members
};

void look(const std::shared_ptr<nn::Module>& module, const std::string& path, Found& found) {
  if (auto layer = std::dynamic_pointer_cast<SyncBatchNormImpl>(module))
    return found.synchronous.push_back(std::move(layer));
  auto* const sequential = module->as<nn::SequentialImpl>();
  bool holds = false;
  for (const auto& child : module->named_children()) {
    const std::string name = path.empty() ? child.key() : path + "." + child.key();
    if (!is_batch_norm(*child.value())) {
      look(child.value(), name, found);
    } else if (sequential != nullptr) {
      holds = true;
    } else {
      found.unreachable += (found.unreachable.empty() ? "'" : ", '") + name + "'";
    }
  }
  if (holds) found.sequentials.push_back(sequential);
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const nn::BatchNormOptions& options_) : options(options_) {
  reset();
}

SyncBatchNormImpl::SyncBatchNormImpl(const nn::BatchNormOptions& options_, Group group,
                                     Average average)
    : SyncBatchNormImpl(options_) {
  join(std::move(group), average);
}

SyncBatchNormImpl::SyncBatchNormImpl(const nn::BatchNormOptions& options_,
                                     const nn::Module& batch_norm)
    : options(options_) {
  const auto tensor = [](const auto& all, const char* name) {
    const at::Tensor* const found = all.find(name);
    return found == nullptr ? at::Tensor() : *found;
  };
  const auto parameters = batch_norm.named_parameters(false);
  const auto parameter = [&](const char* name) {
    const at::Tensor given = tensor(parameters, name);
    return register_parameter(name, given, given.defined() && given.requires_grad());
  };
  const auto buffers = batch_norm.named_buffers(false);
  const auto buffer = [&](const char* name) {
    return register_buffer(name, tensor(buffers, name));
  };
  weight = parameter("weight");
  bias = parameter("bias");
  running_mean = buffer("running_mean");
  running_var = buffer("running_var");
  num_batches_tracked = buffer("num_batches_tracked");
  train(batch_norm.is_training());
}

void SyncBatchNormImpl::join(Group group, Average average) {
  group_ = std::move(group);
  average_ = average;
}

void SyncBatchNormImpl::reset() {
  const int64_t channels = options.num_features();
  const bool affine = options.affine(), track = options.track_running_stats();
  weight = register_parameter("weight", affine ? torch::ones({channels}) : at::Tensor(), affine);
  bias = register_parameter("bias", affine ? torch::zeros({channels}) : at::Tensor(), affine);
  running_mean = register_buffer("running_mean", track ? torch::zeros({channels}) : at::Tensor());
  running_var = register_buffer("running_var", track ? torch::ones({channels}) : at::Tensor());
  num_batches_tracked =
      register_buffer("num_batches_tracked", track ? torch::zeros({}, torch::kLong) : at::Tensor());
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "weft::parallel::SyncBatchNorm(" << options.num_features()
         << ", eps=" << options.eps() << ", momentum=";
  if (options.momentum()) {
    stream << *options.momentum();
  } else {
    stream << "None";
  }
  stream << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats()
         << ", ranks=" << (group_ ? group_->size() : 1) << ")";
}

double SyncBatchNormImpl::next_momentum() {
  if (!running_mean.defined()) return 0.0;
  num_batches_tracked += 1;
  // Without momentum: the plain average over all batches.
  return options.momentum() ? *options.momentum() : 1.0 / num_batches_tracked.item<double>();
}

at::Tensor SyncBatchNormImpl::forward_alone(const at::Tensor& input, bool batch_statistics) {
  const double momentum = is_training() ? next_momentum() : 0.0;
  return torch::batch_norm(input, weight, bias, running_mean, running_var, batch_statistics,
                           momentum, options.eps(), at::globalContext().userEnabledCuDNN());
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  WEFT_REQUIRE(input.dim() >= 2 && input.dim() <= 5 && input.size(1) == options.num_features(),
               "SyncBatchNorm: the input must have 2 to 5 dimensions, the second of size " +
                   std::to_string(options.num_features()));
  if (!is_training() || !group_ || group_->size() == 1)
    return forward_alone(input, is_training() || !options.track_running_stats());

  const bool narrow = input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16;
  const at::Tensor x = narrow ? input.to(at::kFloat) : input;
  const auto in_type = [&](const at::Tensor& parameter) {
    return parameter.defined() ? std::optional(parameter.to(x.scalar_type())) : std::nullopt;
  };
  Moments moments;
  {
    at::NoGradGuard guard;
    moments = joint_moments(x.detach(), *group_);
    const double momentum = next_momentum();
    if (running_mean.defined()) {
      running_mean.mul_(1 - momentum).add_(moments.mean, momentum);
      running_var.mul_(1 - momentum)
          .add_(moments.var, momentum * moments.count / (moments.count - 1));
    }
  }
  const double loss_weight = average_ == Average::kBySamples ? static_cast<double>(x.size(0)) : 1.0;
  const auto terms =
      c10::make_intrusive<NormTerms>(*group_, moments.count, loss_weight, options.eps());
  const at::Tensor y = Normalize::apply(x, in_type(weight), in_type(bias), moments, terms);
  return narrow ? y.to(input.scalar_type()) : y;
}

int convert_sync_batch_norm(const std::shared_ptr<nn::Module>& root, const Group& group,
                            engine::DataParallelOptions::Average average) {
  Found found;
  WEFT_REQUIRE(!is_batch_norm(*root),
               "convert_sync_batch_norm: the root is a batch norm itself; declare it as "
               "weft::parallel::SyncBatchNorm");
  look(root, "", found);
  WEFT_REQUIRE(found.unreachable.empty(), "convert_sync_batch_norm: the batch norms " +
                                              found.unreachable +
                                              " are members of modules and cannot be replaced; "
                                              "declare them as weft::parallel::SyncBatchNorm");
  // One layer may occur in several places.
  std::map<const nn::Module*, std::shared_ptr<SyncBatchNormImpl>> replaced;
  for (nn::SequentialImpl* sequential : found.sequentials) {
    for (const auto& child : sequential->named_children()) {
      if (!is_batch_norm(*child.value())) continue;
      auto& layer = replaced[child.value().get()];
      if (!layer) layer.reset(new SyncBatchNormImpl(options_of(*child.value()), *child.value()));
      for (nn::AnyModule& entry : *sequential) {
        if (entry.ptr() == child.value()) entry = nn::AnyModule(layer);
      }
      sequential->replace_module(child.key(), layer);
    }
  }
  for (const auto& [old, layer] : replaced) found.synchronous.push_back(layer);
  for (const auto& layer : found.synchronous) layer->join(group, average);
  return static_cast<int>(found.synchronous.size());
}

}  // namespace weft::parallel

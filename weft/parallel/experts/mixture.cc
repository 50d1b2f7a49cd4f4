#include "weft/parallel/experts/mixture.h"

#include <torch/nn/module.h>
#include <torch/types.h>

#include <type_traits>
#include <vector>

#include "weft/base/error.h"
#include "weft/parallel/experts/dispatch.h"
#include "weft/parallel/experts/internal/initial.h"
#include "weft/parallel/tensor/collectives.h"

namespace weft::parallel {
namespace {

// Draws every expert's weight [out, in], one after the other, and keeps the slices over tp of this
// rank's experts.
struct Drawn {
  const MixtureOptions& options;
  const ExpertParallel& ep;
  const TensorParallel& tp;

  at::Tensor operator()(at::IntArrayRef sizes, double normal, const Slice& of_stack) const {
    const std::int64_t part = options.router.experts / ep.size(), first = part * ep.rank();
    const Slice slice{of_stack.dim - 1, of_stack.whole};
    std::vector<at::Tensor> mine;
    for (std::int64_t expert = 0; expert < options.router.experts; ++expert) {
      const at::Tensor whole = internal::draw(sizes, normal, tp);
      if (expert >= first && expert < first + part) mine.push_back(slice_of(whole, slice, tp));
    }
    return at::stack(mine);
  }
};

template <class Root, class Fn>
std::map<std::string, ExpertLoad> of_layers(Root& root, const Fn& load) {
  using Layer =
      std::conditional_t<std::is_const_v<Root>, const MixtureOfExpertsImpl, MixtureOfExpertsImpl>;
  std::map<std::string, ExpertLoad> all;
  const auto add = [&](const std::string& name, Root& module) {
    if (auto* const layer = dynamic_cast<Layer*>(&module)) all[name] = load(*layer);
  };
  add("", root);
  for (const auto& module : root.named_modules("", /*include_self=*/false))
    add(module.key(), *module.value());
  return all;
}

at::Tensor activated(ExpertActivation activation, const at::Tensor& up) {
  return activation == ExpertActivation::kGeluTanh ? torch::gelu(up, "tanh") : torch::gelu(up);
}

}  // namespace

MixtureOfExpertsImpl::MixtureOfExpertsImpl(MixtureOptions options_, ExpertParallel ep,
                                           TensorParallel tp, ContextParallel cp)
    : options(options_), ep_(std::move(ep)), tp_(std::move(tp)), cp_(std::move(cp)) {
  WEFT_REQUIRE(options.hidden > 0, "MixtureOfExperts: hidden must be at least 1");
  WEFT_REQUIRE(options.balance >= 0 && options.z >= 0,
               "MixtureOfExperts: balance and z must be at least 0");
  even_part("MixtureOfExperts: experts", options.router.experts, ep_.size());
  even_part("MixtureOfExperts: hidden", options.hidden, tp_.size());
  MixtureOfExpertsImpl::reset();
}

std::map<std::string, Slice> MixtureOfExpertsImpl::slices() const {
  std::map<std::string, Slice> all{{"up_proj", {1, options.hidden}},
                                   {"down_proj", {2, options.hidden}}};
  if (options.activation == ExpertActivation::kSwiglu) all["gate_proj"] = {1, options.hidden};
  return all;
}

void MixtureOfExpertsImpl::reset() {
  router = register_module("router", Router(options.router, tp_, cp_));
  const Drawn drawn{options, ep_, tp_};
  const auto lie = slices();
  const std::vector<std::int64_t> in{options.hidden, options.router.width},
      out{options.router.width, options.hidden};
  if (lie.contains("gate_proj"))
    gate_proj = register_parameter("gate_proj", drawn(in, options.normal, lie.at("gate_proj")));
  up_proj = register_parameter("up_proj", drawn(in, options.normal, lie.at("up_proj")));
  down_proj = register_parameter("down_proj", drawn(out, options.normal_out, lie.at("down_proj")));
}

// unbind() splits the weights into experts. Its backward computes the gradient of all of them in
// one piece.
at::Tensor MixtureOfExpertsImpl::compute(const at::Tensor& rows,
                                         const std::vector<std::int64_t>& counts) const {
  const bool gated = gate_proj.defined();
  const auto gates = gated ? gate_proj.unbind(0) : std::vector<at::Tensor>{},
             ups = up_proj.unbind(0), downs = down_proj.unbind(0);
  const auto parts = rows.split_with_sizes(counts, 0);
  std::vector<at::Tensor> results;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const at::Tensor up = torch::linear(parts[i], ups[i]);
    const at::Tensor hidden = gated ? torch::silu(torch::linear(parts[i], gates[i])) * up
                                    : activated(options.activation, up);
    results.push_back(torch::linear(hidden, downs[i]));
  }
  return at::cat(results);
}

at::Tensor MixtureOfExpertsImpl::forward(const at::Tensor& x) {
  WEFT_REQUIRE(
      x.dim() >= 2 && x.size(-1) == options.router.width,
      "MixtureOfExperts: x must be [..., tokens, " + std::to_string(options.router.width) + "]");
  const Routing routing = router->forward(x);
  const Dispatch dispatch(routing, ep_);
  count(dispatch.load());
  if (is_training()) sum_.add(load_);
  auxiliary_ = is_training() ? losses(routing) : at::Tensor();
  // Each rank of tp has a part of every expert's result, so the gradients of the inputs are summed
  // over tp.
  const at::Tensor rows = dispatch.send(copy_to(x, tp_).reshape({-1, options.router.width}));
  const at::Tensor y =
      dispatch.combine(compute(rows, dispatch.rows_of_expert()), copy_to(routing.weights, tp_));
  return reduce_from(y, tp_).to(x.scalar_type()).view(x.sizes());
}

void MixtureOfExpertsImpl::count(const ExpertLoad& of_ep) {
  load_ = of_ep;
  if (!is_training() || ep_.batch() == nullptr) return;
  // Values that all ranks of ep share are counted by the first of them only.
  std::vector<std::int64_t> counts = of_ep.wanted;
  counts.insert(counts.end(), of_ep.dropped.begin(), of_ep.dropped.end());
  counts.push_back(of_ep.tokens);
  at::Tensor sums =
      at::tensor(counts, at::kLong).mul_(ep_.rank() == 0 ? 1 : 0).to(router->weight.device());
  ep_.batch()->all_reduce(sums);
  sums = sums.cpu();
  const auto* const values = sums.const_data_ptr<std::int64_t>();
  const auto experts = static_cast<std::ptrdiff_t>(of_ep.wanted.size());
  load_.wanted.assign(values, values + experts);
  load_.dropped.assign(values + experts, values + 2 * experts);
  load_.tokens = values[2 * experts];
}

at::Tensor MixtureOfExpertsImpl::losses(const Routing& routing) const {
  const auto experts = static_cast<double>(options.router.experts);
  const double choices =
      static_cast<double>(std::max<std::int64_t>(1, load_.tokens * options.router.top_k));
  const double tokens = static_cast<double>(std::max<std::int64_t>(1, routing.z.size(0)));
  const at::Tensor shares = at::tensor(load_.wanted, at::kDouble)
                                .div_(choices)
                                .to(routing.probabilities.options().requires_grad(false));
  const at::Tensor balance = (routing.probabilities.sum(0) * shares).sum() * (experts / tokens);
  return balance * options.balance + routing.z.sum() * (options.z / tokens);
}

std::map<std::string, ExpertLoad> expert_loads(const torch::nn::Module& root) {
  return of_layers(root, [](const MixtureOfExpertsImpl& layer) { return layer.load(); });
}

std::map<std::string, ExpertLoad> take_expert_loads(torch::nn::Module& root) {
  return of_layers(root, [](MixtureOfExpertsImpl& layer) { return layer.take_sum(); });
}

}  // namespace weft::parallel

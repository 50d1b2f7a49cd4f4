#include "weft/parallel/tensor/context.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cmath>
#include <optional>

#include "weft/parallel/internal/clip.h"
#include "weft/parallel/internal/slices.h"

namespace weft::parallel {

struct TensorParallel::State {
  std::optional<Group> group;
  at::Generator generator;
  std::uint64_t dropout_seed = 0;
  std::uint64_t draw = 0;
};

TensorParallel::TensorParallel() : state_(std::make_shared<State>()) {
  state_->generator = at::detail::getDefaultCPUGenerator();
  state_->dropout_seed = state_->generator.current_seed();
}

TensorParallel::TensorParallel(Group group, std::uint64_t seed)
    : state_(std::make_shared<State>()) {
  state_->group = std::move(group);
  state_->generator = at::detail::createCPUGenerator(seed);
  state_->dropout_seed = seed;
}

int TensorParallel::rank() const { return state_->group ? state_->group->rank() : 0; }
int TensorParallel::size() const { return state_->group ? state_->group->size() : 1; }
at::Generator TensorParallel::generator() const { return state_->generator; }
std::uint64_t TensorParallel::draw() const { return state_->draw; }
void TensorParallel::set_draw(std::uint64_t draw) const { state_->draw = draw; }

const Group& TensorParallel::group() const {
  WEFT_REQUIRE(state_->group.has_value(),
               "TensorParallel: made without a group; pass a group to the constructor");
  return *state_->group;
}

void TensorParallel::seed_dropout(std::uint64_t seed) const {
  state_->dropout_seed = seed;
  state_->draw = 0;
}

std::pair<std::uint64_t, std::uint64_t> TensorParallel::next_draw() const {
  return {state_->dropout_seed, state_->draw++};
}

std::int64_t even_part(const std::string& what, std::int64_t whole, int ranks) {
  const std::int64_t below = whole / ranks * ranks;
  WEFT_REQUIRE(whole > 0 && below == whole,
               what + ": " + std::to_string(whole) + " does not divide by " +
                   std::to_string(ranks) + " ranks; the nearest that " +
                   (below > 0 ? "do are " + std::to_string(below) + " and " : "does is ") +
                   std::to_string(below + ranks));
  return whole / ranks;
}

at::Tensor slice_of(const at::Tensor& whole, const Slice& slice, const TensorParallel& tp) {
  WEFT_REQUIRE(slice.dim < whole.dim() && whole.size(slice.dim) == slice.whole,
               "slice_of: the tensor must have " + std::to_string(slice.whole) +
                   " entries along dimension " + std::to_string(slice.dim));
  if (tp.size() == 1) return whole;
  const std::int64_t part = slice.part(tp.size()), begin = std::min(slice.whole, tp.rank() * part);
  const std::int64_t there = std::min(part, slice.whole - begin);
  std::vector<std::int64_t> sizes = whole.sizes().vec();
  sizes[static_cast<std::size_t>(slice.dim)] = part;
  at::Tensor mine = at::zeros(sizes, whole.options().requires_grad(false));
  mine.narrow(slice.dim, 0, there).copy_(whole.detach().narrow(slice.dim, begin, there));
  return mine;
}

at::Tensor whole_of(const at::Tensor& part, const Slice& slice, const TensorParallel& tp) {
  const at::NoGradGuard no_grad;
  if (tp.size() == 1) return part.detach();
  const at::Tensor front = part.detach().movedim(slice.dim, 0).contiguous();
  std::vector<std::int64_t> sizes = front.sizes().vec();
  sizes[0] *= tp.size();
  at::Tensor all = at::empty(sizes, front.options());
  tp.group().all_gather(all, front);
  return all.narrow(0, 0, slice.whole).movedim(0, slice.dim).contiguous();
}

std::map<std::string, Slice> slices(const torch::nn::Module& root) {
  return internal::slices_below(root, [](const torch::nn::Module& module) {
    const auto* const split = dynamic_cast<const SplitModule*>(&module);
    return split != nullptr ? split->slices() : std::map<std::string, Slice>();
  });
}

double clip_grad_norm(const torch::nn::Module& root, double max_norm, const TensorParallel& tp) {
  const at::NoGradGuard no_grad;
  const auto split = slices(root);
  at::Tensor here = at::zeros({}, at::kDouble), everywhere = at::zeros({}, at::kDouble);
  for (const auto& parameter : root.named_parameters()) {
    const at::Tensor gradient = parameter.value().grad();
    if (gradient.defined())
      (split.contains(parameter.key()) ? here : everywhere) +=
          gradient.to(at::kDouble).square().sum().cpu();
  }
  if (tp.size() > 1) tp.group().all_reduce(here);
  return internal::clip_to_norm(root.parameters(), std::sqrt((here + everywhere).item<double>()),
                                max_norm);
}

}  // namespace weft::parallel

#include "weft/parallel/context/context_parallel.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

#include "weft/parallel/context/internal/ring_rotation.h"

namespace weft::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns value, with the gradient of factor · x.
struct StandsFor final : torch::autograd::Function<StandsFor> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& value,
                            double factor) {
    context->saved_data["factor"] = factor;
    return value.to(x.options()).reshape(x.sizes()).clone();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {gradients[0] * context->saved_data["factor"].toDouble(), {}, {}};
  }
};

}  // namespace

struct ContextParallel::Shared {
  Group group;
  std::shared_ptr<internal::HostRing> ring;  // made by the first host_ring()
};

ContextParallel::ContextParallel() = default;
ContextParallel::ContextParallel(Group group, ContextMethod method)
    : shared_(std::make_shared<Shared>(Shared{std::move(group), nullptr})), method_(method) {}

int ContextParallel::rank() const { return shared_ ? shared_->group.rank() : 0; }
int ContextParallel::size() const { return shared_ ? shared_->group.size() : 1; }

const Group& ContextParallel::group() const {
  WEFT_REQUIRE(shared_ != nullptr,
               "ContextParallel: made without a group; pass a group to the constructor");
  return shared_->group;
}

internal::HostRing* ContextParallel::host_ring() const {
  if (shared_ == nullptr) return nullptr;
  Shared& shared = *shared_;
  if (shared.ring == nullptr && shared.group.size() > 1 && shared.group.host() != nullptr)
    shared.ring = internal::make_host_ring(shared.group);
  return shared.ring.get();
}

SequenceLayout ContextParallel::layout_of_part(std::int64_t here) const {
  if (size() == 1) return layout(here);
  at::Tensor lengths = at::empty({size()}, at::kLong);
  group().all_gather(lengths, at::full({1}, here, at::kLong));
  const SequenceLayout all = layout(lengths.sum().item<std::int64_t>());
  for (int rank = 0; rank < size(); ++rank) {
    const auto has = lengths[rank].item<std::int64_t>();
    WEFT_REQUIRE(has == all.length(rank),
                 "context parallelism: rank " + std::to_string(rank) + " has " +
                     std::to_string(has) + " of " + std::to_string(all.whole) +
                     " positions, but its part are " + std::to_string(all.length(rank)) +
                     "; cut sequences by ContextParallel::part()");
  }
  return all;
}

at::Tensor ContextParallel::part(const at::Tensor& whole, std::int64_t dim) const {
  return layout(whole.size(dim)).part(whole, dim, rank());
}

at::Tensor ContextParallel::whole(const at::Tensor& part, std::int64_t dim) const {
  const at::NoGradGuard no_grad;
  const SequenceLayout all = layout_of_part(part.size(dim));
  if (size() == 1) return part.detach();
  const at::Tensor front = part.detach().movedim(dim, 0);
  std::vector<std::int64_t> sizes = front.sizes().vec();
  sizes[0] = all.longest();
  at::Tensor mine = at::zeros(sizes, front.options());
  mine.narrow(0, 0, front.size(0)).copy_(front);
  sizes[0] *= size();
  at::Tensor gathered = at::empty(sizes, front.options());
  group().all_gather(gathered, mine);
  sizes[0] = all.whole;
  const at::Tensor joined = at::empty(sizes, front.options());
  for (int rank = 0; rank < size(); ++rank) {
    joined.index_copy_(0, all.positions(rank),
                       gathered.narrow(0, rank * all.longest(), all.length(rank)));
  }
  return joined.movedim(0, dim).contiguous();
}

at::Tensor ContextParallel::mean(const at::Tensor& sum, std::int64_t count) const {
  WEFT_REQUIRE(sum.numel() == 1, "ContextParallel::mean: the value must be one number");
  at::Tensor all = at::empty({2}, at::kDouble);
  all[0].copy_(sum.detach().reshape({}));
  all[1].fill_(static_cast<double>(count));
  if (size() > 1) group().all_reduce(all);
  const double counted = all[1].item<double>();
  WEFT_REQUIRE(counted > 0, "ContextParallel::mean: no rank has a position that counts");
  return StandsFor::apply(sum, all[0] / counted, size() / counted);
}

void average_gradients(const torch::nn::Module& root, const ContextParallel& cp) {
  if (cp.size() == 1) return;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : root.parameters()) {
    if (!parameter.requires_grad()) continue;
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(parameter);
    cp.group().all_reduce(gradient, ReduceOp::kAvg);
  }
}

}  // namespace weft::parallel

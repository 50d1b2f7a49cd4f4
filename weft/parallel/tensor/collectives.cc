#include "weft/parallel/tensor/collectives.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <vector>

namespace weft::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor same(const at::Tensor& x, std::int64_t, const TensorParallel&) { return x; }

at::Tensor sum(const at::Tensor& x, std::int64_t, const TensorParallel& tp) {
  at::Tensor y = x.clone(at::MemoryFormat::Contiguous);
  tp.group().all_reduce(y);
  return y;
}

at::Tensor slice(const at::Tensor& x, std::int64_t dim, const TensorParallel& tp) {
  const std::int64_t part = x.size(dim) / tp.size();
  return x.narrow(dim, tp.rank() * part, part).clone(at::MemoryFormat::Contiguous);
}

at::Tensor gather(const at::Tensor& x, std::int64_t dim, const TensorParallel& tp) {
  const at::Tensor front = x.movedim(dim, 0).contiguous();
  std::vector<std::int64_t> sizes = front.sizes().vec();
  sizes[0] *= tp.size();
  at::Tensor all = at::empty(sizes, front.options());
  tp.group().all_gather(all, front);
  return all.movedim(0, dim).contiguous();
}

at::Tensor sum_slice(const at::Tensor& x, std::int64_t dim, const TensorParallel& tp) {
  const at::Tensor front = x.movedim(dim, 0).contiguous();
  std::vector<std::int64_t> sizes = front.sizes().vec();
  sizes[0] /= tp.size();
  at::Tensor mine = at::empty(sizes, front.options());
  tp.group().reduce_scatter(mine, front);
  return mine.movedim(0, dim).contiguous();
}

// Values that backward needs.
struct SplitTerms final : torch::CustomClassHolder {
  SplitTerms(TensorParallel tp_, std::int64_t dim_) : tp(std::move(tp_)), dim(dim_) {}
  TensorParallel tp;
  std::int64_t dim;
};

using Map = at::Tensor (*)(const at::Tensor&, std::int64_t, const TensorParallel&);

// kBackward is differentiable itself, so gradients of gradients work.
template <Map kForward, Map kBackward>
struct Collective final : torch::autograd::Function<Collective<kForward, kBackward>> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, std::int64_t dim,
                            const TensorParallel& tp) {
    context->saved_data["terms"] =
        c10::IValue::make_capsule(c10::make_intrusive<SplitTerms>(tp, dim));
    return kForward(x, dim, tp);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto terms =
        c10::static_intrusive_pointer_cast<SplitTerms>(context->saved_data["terms"].toCapsule());
    return {kBackward(gradients[0], terms->dim, terms->tp), {}, {}};
  }
};

void require_even(const char* what, const at::Tensor& x, std::int64_t dim,
                  const TensorParallel& tp) {
  even_part(std::string(what) + ": dimension " + std::to_string(dim), x.size(dim), tp.size());
}

at::Tensor copy_to_along(const at::Tensor& x, std::int64_t, const TensorParallel& tp) {
  return copy_to(x, tp);
}
at::Tensor reduce_from_along(const at::Tensor& x, std::int64_t, const TensorParallel& tp) {
  return reduce_from(x, tp);
}

}  // namespace

at::Tensor copy_to(const at::Tensor& x, const TensorParallel& tp) {
  return tp.size() == 1 ? x : Collective<same, reduce_from_along>::apply(x, 0, tp);
}

at::Tensor reduce_from(const at::Tensor& x, const TensorParallel& tp) {
  return tp.size() == 1 ? x : Collective<sum, copy_to_along>::apply(x, 0, tp);
}

at::Tensor scatter_to(const at::Tensor& x, std::int64_t dim, const TensorParallel& tp) {
  if (tp.size() == 1) return x;
  require_even("scatter_to", x, dim, tp);
  return Collective<slice, gather_from>::apply(x, dim, tp);
}

at::Tensor gather_from(const at::Tensor& x, std::int64_t dim, const TensorParallel& tp) {
  return tp.size() == 1 ? x : Collective<gather, scatter_to>::apply(x, dim, tp);
}

at::Tensor all_gather_from(const at::Tensor& x, std::int64_t dim, const TensorParallel& tp) {
  return tp.size() == 1 ? x : Collective<gather, reduce_scatter_to>::apply(x, dim, tp);
}

at::Tensor reduce_scatter_to(const at::Tensor& x, std::int64_t dim, const TensorParallel& tp) {
  if (tp.size() == 1) return x;
  require_even("reduce_scatter_to", x, dim, tp);
  return Collective<sum_slice, all_gather_from>::apply(x, dim, tp);
}

at::Tensor enter_split(const at::Tensor& x, Sequence sequence, const TensorParallel& tp) {
  return sequence == Sequence::kWhole ? copy_to(x, tp) : all_gather_from(x, -2, tp);
}

at::Tensor leave_split(const at::Tensor& x, Sequence sequence, const TensorParallel& tp) {
  return sequence == Sequence::kWhole ? reduce_from(x, tp) : reduce_scatter_to(x, -2, tp);
}

at::Tensor use_whole(const at::Tensor& parameter, Sequence sequence, const TensorParallel& tp) {
  return sequence == Sequence::kWhole || !parameter.defined() ? parameter : copy_to(parameter, tp);
}

}  // namespace weft::parallel

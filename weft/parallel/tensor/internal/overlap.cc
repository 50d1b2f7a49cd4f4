#include "weft/parallel/tensor/internal/overlap.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <utility>
#include <vector>

#include "weft/parallel/tensor/linear.h"

namespace weft::parallel::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct OverlapTerms final : torch::CustomClassHolder {
  OverlapTerms(Overlap how_, TensorParallel tp_) : how(how_), tp(std::move(tp_)) {}
  Overlap how;
  TensorParallel tp;
};

// A piece in transfer; `in` lives until it has arrived.
struct Piece {
  at::Tensor in, out;
  std::int64_t begin = 0;
  Group::Work work;
};

// [begin, count] of each piece of n entries; none is empty.
std::vector<std::pair<std::int64_t, std::int64_t>> cut(std::int64_t n, int chunks) {
  std::vector<std::pair<std::int64_t, std::int64_t>> pieces;
  for (std::int64_t i = 0; i < chunks; ++i) {
    const std::int64_t begin = n * i / chunks, end = n * (i + 1) / chunks;
    if (end > begin) pieces.emplace_back(begin, end - begin);
  }
  return pieces;
}

std::vector<std::int64_t> with_last(at::IntArrayRef sizes, std::int64_t last) {
  std::vector<std::int64_t> changed = sizes.vec();
  changed.back() = last;
  return changed;
}

at::Tensor forward_whole(const at::Tensor& x, const at::Tensor& weight, const OverlapTerms& terms) {
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  at::Tensor y = at::empty({rows.size(0), weight.size(0)}, x.options());
  std::vector<Piece> pieces;
  for (const auto& [begin, count] : cut(rows.size(0), terms.how.chunks)) {
    at::Tensor out = y.narrow(0, begin, count);
    at::mm_out(out, rows.narrow(0, begin, count), weight.t());
    auto work = terms.tp.group().all_reduce_async(out);
    pieces.push_back({{}, out, begin, std::move(work)});
  }
  for (const Piece& piece : pieces) piece.work->wait();
  return y.view(with_last(x.sizes(), weight.size(0)));
}

// [..., sequence, features] -> [ranks, leading dimensions, part of the sequence, features]: a view.
at::Tensor by_rank(const at::Tensor& x, int ranks) {
  return x.reshape({-1, ranks, x.size(-2) / ranks, x.size(-1)}).movedim(1, 0);
}

at::Tensor forward_split(const at::Tensor& x, const at::Tensor& weight, const OverlapTerms& terms) {
  const at::Tensor parts = by_rank(x, terms.tp.size());
  at::Tensor y = at::empty({parts.size(1), parts.size(2), weight.size(0)}, x.options());
  std::vector<Piece> pieces;
  for (const auto& [begin, count] : cut(parts.size(2), terms.how.chunks)) {
    const at::Tensor in =
        at::linear(parts.narrow(2, begin, count), weight).flatten(0, 1).contiguous();
    at::Tensor out = at::empty({y.size(0), count, y.size(2)}, y.options());
    auto work = terms.tp.group().reduce_scatter_async(out, in);
    pieces.push_back({in, out, begin, std::move(work)});
  }
  for (const Piece& piece : pieces) {
    piece.work->wait();
    y.narrow(1, piece.begin, piece.out.size(1)).copy_(piece.out);
  }
  std::vector<std::int64_t> sizes = with_last(x.sizes(), weight.size(0));
  sizes[sizes.size() - 2] /= terms.tp.size();
  return y.view(sizes);
}

variable_list backward_split(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& dy,
                             const OverlapTerms& terms) {
  const int ranks = terms.tp.size();
  const at::Tensor parts = by_rank(x, ranks), mine = dy.reshape({-1, dy.size(-2), dy.size(-1)});
  std::vector<Piece> pieces;
  for (const auto& [begin, count] : cut(parts.size(2), terms.how.chunks)) {
    const at::Tensor in = mine.narrow(1, begin, count).contiguous();
    at::Tensor out = at::empty({ranks * in.size(0), count, in.size(2)}, in.options());
    auto work = terms.tp.group().all_gather_async(out, in);
    pieces.push_back({in, out, begin, std::move(work)});
  }
  at::Tensor dx = at::empty(parts.sizes(), x.options()), dweight = at::zeros_like(weight);
  for (const Piece& piece : pieces) {
    piece.work->wait();
    const std::int64_t count = piece.out.size(1);
    const at::Tensor d = piece.out.view({ranks, -1, count, piece.out.size(2)});
    dx.narrow(2, piece.begin, count).copy_(at::matmul(d, weight));
    const at::Tensor rows = parts.narrow(2, piece.begin, count).reshape({-1, x.size(-1)});
    dweight.addmm_(d.reshape({-1, d.size(3)}).t(), rows);
  }
  return {dx.movedim(0, 1).reshape(x.sizes()), dweight, {}};
}

struct MultiplyAndLeave final : torch::autograd::Function<MultiplyAndLeave> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const c10::intrusive_ptr<OverlapTerms>& terms) {
    context->save_for_backward({x, weight});
    context->saved_data["terms"] = c10::IValue::make_capsule(terms);
    return terms->how.sequence == Sequence::kWhole ? forward_whole(x, weight, *terms)
                                                   : forward_split(x, weight, *terms);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    WEFT_REQUIRE(!at::GradMode::is_enabled(),
                 "Linear in chunks: backward of backward (create_graph) is not supported");
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &dy = gradients[0];
    const auto terms =
        c10::static_intrusive_pointer_cast<OverlapTerms>(context->saved_data["terms"].toCapsule());
    if (terms->how.sequence == Sequence::kSplit) return backward_split(x, weight, dy, *terms);
    const at::Tensor rows = x.reshape({-1, x.size(-1)}), d = dy.reshape({-1, dy.size(-1)});
    return {at::matmul(dy, weight), at::mm(d.t(), rows), {}};
  }
};

}  // namespace

at::Tensor multiply_and_leave(const at::Tensor& x, const at::Tensor& weight, const Overlap& how,
                              const TensorParallel& tp) {
  if (tp.size() == 1 || how.chunks == 1)
    return leave_split(torch::linear(x, weight), how.sequence, tp);
  if (how.sequence == Sequence::kSplit) even_part("Linear: sequence", x.size(-2), tp.size());
  // Products into given memory are not cast by autocast, nor are those of backward.
  return MultiplyAndLeave::apply(in_product_type(x), in_product_type(weight),
                                 c10::make_intrusive<OverlapTerms>(how, tp));
}

}  // namespace weft::parallel::internal

#include "weft/parallel/tensor/vocabulary.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace weft::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void require_ids(const char* who, const at::Tensor& ids, std::int64_t vocabulary) {
  WEFT_REQUIRE(ids.scalar_type() == at::kLong, std::string(who) + ": ids must be int64");
  // Kernels of a device check the ids themselves. Looking at them here would wait for the device.
  if (ids.numel() == 0 || !ids.is_cpu()) return;
  const std::int64_t low = ids.min().item<std::int64_t>(), high = ids.max().item<std::int64_t>();
  WEFT_REQUIRE(low >= 0 && high < vocabulary,
               std::string(who) + ": id " + std::to_string(low < 0 ? low : high) +
                   " is outside the vocabulary of " + std::to_string(vocabulary));
}

// The columns of the vocabulary on this rank.
struct Columns {
  std::int64_t begin = 0, real = 0;  // columns from `real` on are padding
  std::int64_t vocabulary = 0;
  double smoothing = 0;
};

// Loss of each row of [n, columns of this rank], all with targets that count.
struct SplitCrossEntropy final : torch::autograd::Function<SplitCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& target, const Columns& columns,
                            const TensorParallel& tp) {
    const std::int64_t n = logits.size(0), width = logits.size(1);
    const at::Tensor real = logits.narrow(1, 0, columns.real);
    at::Tensor top = columns.real > 0 ? real.amax(1)
                                      : at::full({n}, -std::numeric_limits<double>::infinity(),
                                                 logits.options());
    tp.group().all_reduce(top, ReduceOp::kMax);

    // Padding stays 0. The array then holds exponentials, and later probabilities.
    at::Tensor p = at::zeros({n, width}, logits.options());
    p.narrow(1, 0, columns.real).copy_(real - top.unsqueeze(1));
    const at::Tensor at = target - columns.begin, here = at.ge(0).logical_and(at.lt(columns.real));
    const at::Tensor column = at.where(here, 0);
    const bool smooth = columns.smoothing > 0;
    at::Tensor sums = at::zeros({smooth ? 3 : 2, n}, logits.options());
    if (smooth) sums[2].copy_(p.sum(1));
    // A factor of 0 would make NaN of another column's -inf.
    if (width > 0)
      sums[1].copy_(p.gather(1, column.unsqueeze(1)).squeeze(1).masked_fill(here.logical_not(), 0));
    p.narrow(1, 0, columns.real).exp_();
    sums[0].copy_(p.sum(1));
    tp.group().all_reduce(sums);

    p.div_(sums[0].unsqueeze(1));
    context->save_for_backward({p, column, here});
    context->saved_data["e"] = columns.smoothing;
    context->saved_data["real"] = columns.real;
    context->saved_data["vocabulary"] = columns.vocabulary;
    const at::Tensor log_sum = sums[0].log();
    at::Tensor loss = log_sum - sums[1] * (1 - columns.smoothing);
    if (smooth) loss -= sums[2] * (columns.smoothing / static_cast<double>(columns.vocabulary));
    return loss;
  }

  // softmax - ((1 - e) one-hot + e / vocabulary), each row times its gradient.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    WEFT_REQUIRE(!at::GradMode::is_enabled(),
                 "cross_entropy: backward of backward (create_graph) is not supported");
    const auto saved = context->get_saved_variables();
    const at::Tensor &column = saved[1], &here = saved[2];
    const double e = context->saved_data["e"].toDouble();
    at::Tensor d = saved[0].clone();
    if (e > 0)
      d.narrow(1, 0, context->saved_data["real"].toInt())
          .sub_(e / static_cast<double>(context->saved_data["vocabulary"].toInt()));
    if (d.size(1) > 0)
      d.scatter_add_(1, column.unsqueeze(1), (here.to(d.scalar_type()) * -(1 - e)).unsqueeze(1));
    return {d.mul_(gradients[0].unsqueeze(1)), {}, {}, {}};
  }
};

// As many rows as fit a cache, with `width` columns of float32.
std::int64_t rows_of_part(const at::Tensor& logits) {
  const std::int64_t bytes = logits.is_cpu() ? 1 << 20 : 24 << 20;
  return std::max<std::int64_t>(1, bytes / (4 * std::max<std::int64_t>(1, logits.size(1))));
}

// Loss of each row of [n, vocabulary], with the whole vocabulary on this rank; 0 for rows that do
// not count. Computes some rows at a time, and probabilities again in backward, so that no array
// of the size of the logits is kept, or has more bits than they have.
struct WholeCrossEntropy final : torch::autograd::Function<WholeCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& target, double smoothing, std::int64_t ignore_index) {
    const std::int64_t n = logits.size(0), step = rows_of_part(logits);
    const auto type = logits.element_size() < 4 ? at::kFloat : logits.scalar_type();
    const at::Tensor counts = target.ne(ignore_index),
                     column = target.where(counts, 0).unsqueeze(1);
    const at::Tensor own = at::empty({n, 1}, logits.options().dtype(type));
    const at::Tensor mean = smoothing > 0 ? at::empty({n, 1}, own.options()) : at::Tensor();
    for (std::int64_t row = 0; row < n; row += step) {
      const std::int64_t some = std::min(step, n - row);
      const at::Tensor log_p = at::_log_softmax(logits.narrow(0, row, some).to(type), 1, false);
      own.narrow(0, row, some).copy_(log_p.gather(1, column.narrow(0, row, some)));
      if (mean.defined()) mean.narrow(0, row, some).copy_(log_p.mean(1, true));
    }
    context->save_for_backward({logits, column, counts, own});
    context->saved_data["e"] = smoothing;
    at::Tensor loss = own * (smoothing - 1);
    if (mean.defined()) loss -= mean * smoothing;
    return loss.squeeze(1).masked_fill(counts.logical_not(), 0);
  }

  // softmax - ((1 - e) one-hot + e / vocabulary), each row times its gradient.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    WEFT_REQUIRE(!at::GradMode::is_enabled(),
                 "cross_entropy: backward of backward (create_graph) is not supported");
    const auto saved = context->get_saved_variables();
    const at::Tensor &logits = saved[0], &column = saved[1], &own = saved[3];
    const double e = context->saved_data["e"].toDouble(),
                 rest = e / static_cast<double>(logits.size(1));
    const at::Tensor scale = gradients[0].masked_fill(saved[2].logical_not(), 0).unsqueeze(1);
    // 16 bits cannot hold small probabilities. They can hold the products with the gradient, which
    // includes the loss scale.
    const bool widens = own.scalar_type() != logits.scalar_type();
    const std::int64_t n = logits.size(0),
                       step = logits.is_cpu() || widens ? rows_of_part(logits) : n;
    const at::Tensor d = at::empty(logits.sizes(), logits.options());
    for (std::int64_t row = 0; row < n; row += step) {
      const std::int64_t some = std::min(step, n - row);
      const at::Tensor part = d.narrow(0, row, some);
      at::Tensor p = widens ? at::empty(part.sizes(), own.options()) : part;
      at::_softmax_out(p, logits.narrow(0, row, some).to(own.scalar_type()), 1, false);
      if (e > 0) p.sub_(rest);
      p.mul_(scale.narrow(0, row, some));
      if (widens) part.copy_(p);
    }
    // For the target, the difference to 1 must not be rounded before it is taken.
    d.scatter_(1, column, ((own.expm1() + (e - rest)) * scale).to(d.scalar_type()));
    return {d, {}, {}, {}};
  }
};

at::Tensor whole(const at::Tensor& rows, const at::Tensor& target,
                 const CrossEntropyOptions& options) {
  // A narrowed tensor costs a copy of the logits in backward.
  return WholeCrossEntropy::apply(
      options.vocabulary < rows.size(1) ? rows.narrow(1, 0, options.vocabulary) : rows, target,
      options.label_smoothing, options.ignore_index);
}

at::Tensor split(const at::Tensor& logits, const at::Tensor& target,
                 const CrossEntropyOptions& options, const TensorParallel& tp) {
  const at::Tensor rows = logits.element_size() < 4 ? logits.to(at::kFloat) : logits;
  const std::int64_t width = rows.size(1), begin = tp.rank() * width;
  const Columns columns{begin, std::clamp<std::int64_t>(options.vocabulary - begin, 0, width),
                        options.vocabulary, options.label_smoothing};
  const at::Tensor counts = target.ne(options.ignore_index);
  const at::Tensor loss = SplitCrossEntropy::apply(rows, target.where(counts, 0), columns, tp);
  return loss.masked_fill(counts.logical_not(), 0);
}

}  // namespace

EmbeddingImpl::EmbeddingImpl(EmbeddingOptions options_, TensorParallel tp)
    : options(options_), tp_(std::move(tp)) {
  WEFT_REQUIRE(options.vocabulary > 0 && options.features > 0,
               "Embedding: vocabulary and features must be at least 1");
  EmbeddingImpl::reset();
}

std::map<std::string, Slice> EmbeddingImpl::slices() const {
  return {{"weight", {0, options.vocabulary}}};
}

void EmbeddingImpl::reset() {
  const at::NoGradGuard no_grad;
  const at::Tensor whole = torch::empty({options.vocabulary, options.features})
                               .normal_(0, options.normal, tp_.generator());
  weight = register_parameter("weight", slice_of(whole, slices().at("weight"), tp_));
}

at::Tensor EmbeddingImpl::forward(const at::Tensor& ids) {
  require_ids("Embedding", ids, options.vocabulary);
  if (tp_.size() == 1) return torch::embedding(weight, ids);
  const at::Tensor at = ids - tp_.rank() * weight.size(0),
                   away = at.lt(0).logical_or(at.ge(weight.size(0)));
  const at::Tensor rows =
      torch::embedding(weight, at.masked_fill(away, 0)).masked_fill(away.unsqueeze(-1), 0);
  return leave_split(rows, options.sequence, tp_);
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                         const CrossEntropyOptions& given, const TensorParallel& tp) {
  CrossEntropyOptions options = given;
  WEFT_REQUIRE(
      logits.dim() >= 1 &&
          logits.sizes().slice(0, static_cast<std::size_t>(logits.dim() - 1)) == target.sizes(),
      "cross_entropy: logits must be [..., columns], and the target must have their leading "
      "dimensions");
  WEFT_REQUIRE(options.label_smoothing >= 0 && options.label_smoothing < 1,
               "cross_entropy: label_smoothing must be in [0, 1)");
  const std::int64_t columns = logits.size(-1) * tp.size();
  if (options.vocabulary == 0) options.vocabulary = columns;
  WEFT_REQUIRE(options.vocabulary <= columns, "cross_entropy: " + std::to_string(columns) +
                                                  " columns on all ranks, but a vocabulary of " +
                                                  std::to_string(options.vocabulary));
  const at::Tensor flat = target.reshape({-1});
  const at::Tensor counted = flat.ne(options.ignore_index).sum();
  if (flat.is_cpu())
    require_ids("cross_entropy", flat.masked_select(flat.ne(options.ignore_index)),
                options.vocabulary);
  const at::Tensor rows = logits.reshape({-1, logits.size(-1)});
  const at::Tensor loss =
      tp.size() == 1 ? whole(rows, flat, options) : split(rows, flat, options, tp);
  if (options.reduction == LossReduction::kNone) return loss.view(target.sizes());
  if (options.reduction == LossReduction::kSum) return loss.sum();
  WEFT_REQUIRE(!flat.is_cpu() || counted.item<std::int64_t>() > 0,
               "cross_entropy: all targets are ignored, so there is no mean");
  return loss.sum() / counted;
}

}  // namespace weft::parallel

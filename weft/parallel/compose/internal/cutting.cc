// Divides a batch into micro-batches, and weights the loss of each.
#include <ATen/ATen.h>

#include <algorithm>

#include "weft/base/text/words.h"
#include "weft/parallel/compose/autocast.h"
#include "weft/parallel/compose/internal/composed.h"
#include "weft/parallel/compose/internal/on_device.h"

namespace weft::parallel::internal {

// A pipeline weights micro-batches by their reported rows (at least one). The loss of each counts
// `factor` times its share of the true rows.
std::vector<Composed::Part> Composed::even_parts(std::int64_t rows, double factor) const {
  const std::int64_t count = plan.micro_batches;
  const auto told = static_cast<double>(std::max(rows, count));
  std::vector<Part> parts;
  for (std::int64_t i = 0, begin = 0; i < count; ++i) {
    Part part{
        .begin = begin, .rows = rows / count + (i < rows % count ? 1 : 0), .told = 0, .weight = 0};
    begin += part.rows;
    part.told = std::max<std::int64_t>(1, part.rows);
    if (part.rows > 0)
      part.weight = factor * (static_cast<double>(part.rows) / static_cast<double>(rows) /
                              (static_cast<double>(part.told) / told));
    parts.push_back(part);
  }
  return parts;
}

// Cuts that depend only on the whole batch of `all` samples: part i of n begins at sample floor(all
// · i / n).
std::vector<Composed::Part> Composed::micro_shards(double all, double factor) const {
  const std::int64_t first = static_cast<std::int64_t>(replica()) * plan.micro_batches;
  const auto begin = [&](std::int64_t i) {
    return static_cast<std::int64_t>(all) * i / plan.micro_shards;
  };
  const std::int64_t mine = begin(first + plan.micro_batches) - begin(first);
  WEFT_REQUIRE(static_cast<std::int64_t>(samples_) == mine,
               "train_step: with micro_shards replica " + std::to_string(replica()) + " of " +
                   std::to_string(replicas().size()) +
                   " must have samples floor(n r / replicas) to floor(n (r + 1) / replicas) of all "
                   "n, here " +
                   std::to_string(mine) + ", not " +
                   std::to_string(static_cast<std::int64_t>(samples_)));
  std::vector<Part> parts;
  for (std::int64_t i = first; i < first + plan.micro_batches; ++i) {
    const std::int64_t rows = begin(i + 1) - begin(i);
    parts.push_back({begin(i) - begin(first), rows, 1,
                     factor * (static_cast<double>(rows) / all) * plan.micro_batches});
  }
  return parts;
}

// Adds a tensor with the reported number of rows before the targets, and the weight after them.
// Micro-batches without a row get one row that does not count: a copy of the first sample, or zeros
// without a sample. Experts and joint batch norms would count it, so they get none. Micro-shards
// are copies, so that they have the same strides wherever they are computed.
Composed::Cut Composed::cut(const Tensors& inputs, const Tensors& targets,
                            const std::vector<Part>& parts) const {
  const std::int64_t rows = inputs[0].size(0);
  Cut cut{std::vector<Tensors>(parts.size()), std::vector<Tensors>(parts.size())};
  const auto deal = [&](const Tensors& from, std::vector<Tensors>& to, const char* what) {
    for (const at::Tensor& whole : from) {
      WEFT_REQUIRE(
          whole.dim() > 0 && whole.size(0) == rows,
          std::string("train_step: all ") + what +
              " must have one entry per sample along the first dimension, like the first input");
      std::vector<std::int64_t> one = whole.sizes().vec();
      one[0] = 1;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const bool made_up = parts[i].rows == 0 && model.experts == 0 && !plan.sync_batch_norm;
        const at::Tensor piece = !made_up   ? whole.narrow(0, parts[i].begin, parts[i].rows)
                                 : rows > 0 ? whole.narrow(0, 0, 1).clone()
                                            : at::zeros(one, whole.options());
        to[i].push_back(plan.micro_shards > 0 ? piece.clone() : piece);
      }
    }
  };
  deal(inputs, cut.inputs, "inputs");
  if (!pipeline->has_last_stage()) return cut;
  WEFT_REQUIRE(!targets.empty(), "train_step: this rank needs the targets, but got none");
  for (std::size_t i = 0; i < parts.size(); ++i)
    cut.targets[i].push_back(at::zeros({1}).expand({parts[i].told}));
  deal(targets, cut.targets, "targets");
  for (std::size_t i = 0; i < parts.size(); ++i)
    cut.targets[i].push_back(at::scalar_tensor(parts[i].weight, at::kDouble));
  return cut;
}

namespace {

// "Float[16, 2], Long[16]".
std::string shapes_of(const Tensors& tensors) {
  std::vector<std::string> texts;
  for (const at::Tensor& tensor : tensors)
    texts.push_back(std::string(c10::toString(tensor.scalar_type())) + "[" +
                    joined(tensor.sizes()) + "]");
  return joined(texts);
}

}  // namespace

Error in_plain_words(const std::string& what, const Tensors& inputs, const c10::Error& error) {
  const std::string where = what + " of " + shapes_of(inputs) + ": ";
  if (code_of(error) == Errc::kUnavailable) return {Errc::kUnavailable, where + describe(error)};
  const std::string text = error.what_without_backtrace(),
                    cause = engine::cause_in_batch_norm(
                        text, "Plan::sync_batch_norm, or model.sync_batch_norm in a recipe");
  return {Errc::kInvalidArgument,
          where + (cause.empty() ? text.substr(0, text.find('\n')) : cause)};
}

namespace {

void check_loss(const at::Tensor& loss) {
  WEFT_REQUIRE(loss.defined(),
               "the loss is not a tensor; return one number, the mean over the samples");
  WEFT_REQUIRE(loss.numel() == 1, "the loss is a tensor of shape [" + joined(loss.sizes()) +
                                      "]; return one number, the mean over the samples");
  WEFT_REQUIRE(loss.requires_grad() || !at::GradMode::is_enabled(),
               "the loss does not depend on the model's parameters, so they get no gradient");
}

// The loss of no samples, with a graph, since every rank runs backward. A NaN of made-up rows gets
// no gradient.
at::Tensor loss_of_nothing(const Tensors& outputs) {
  for (const at::Tensor& output : outputs) {
    if (output.requires_grad()) return output.sum().nan_to_num(0.0, 0.0, 0.0) * 0;
  }
  return at::zeros({});
}

}  // namespace

at::Tensor Composed::loss_of_part(const Tensors& outputs, const Tensors& targets) {
  const Autocast autocast(precision, plan.device.type());
  const double weight = targets.back().item<double>();
  const Tensors wanted = on_device({targets.begin() + 1, targets.end() - 1}, plan.device);
  // A mean over no samples is NaN, and the loss may ignore all made-up targets.
  const bool nothing = model.experts == 0 && weight == 0;
  const at::Tensor loss =
      nothing ? loss_of_nothing(outputs) : in_one_line("the loss", outputs, [&] {
        return model.loss(outputs, wanted, contexts());
      });
  if (!nothing) check_loss(loss);
  if (!losses_.empty() && at::GradMode::is_enabled()) {
    const auto part = static_cast<std::size_t>(micro_batch_);
    const std::int64_t rows = shards_[part].rows;
    losses_[static_cast<std::size_t>(replica()) * shards_.size() + part] =
        rows == 0 ? 0 : loss.item<double>() * static_cast<double>(rows);
  }
  return weight == 1 ? loss : loss * weight;
}

}  // namespace weft::parallel::internal

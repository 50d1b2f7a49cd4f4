// Divides a batch into micro-batches, and weights the loss of each.
#include "weft/parallel/compose/internal/micro_batches.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "weft/base/text/words.h"
#include "weft/parallel/compose/autocast.h"
#include "weft/parallel/compose/internal/on_device.h"

namespace weft::parallel::internal {

// A pipeline weights micro-batches by their reported rows (at least one). The loss of each counts
// `factor` times its share of the true rows.
void MicroBatches::divide_evenly(std::int64_t rows, double factor) {
  const std::int64_t count = c_.plan.micro_batches;
  const auto told = static_cast<double>(std::max(rows, count));
  parts_.clear();
  for (std::int64_t i = 0, begin = 0; i < count; ++i) {
    Part part{
        .begin = begin, .rows = rows / count + (i < rows % count ? 1 : 0), .told = 0, .weight = 0};
    begin += part.rows;
    part.told = std::max<std::int64_t>(1, part.rows);
    if (part.rows > 0)
      part.weight = factor * (static_cast<double>(part.rows) / static_cast<double>(rows) /
                              (static_cast<double>(part.told) / told));
    parts_.push_back(part);
  }
}

// Cuts that depend only on the whole batch of `all` samples: part i of n begins at sample floor(all
// · i / n).
void MicroBatches::divide_into_shards(std::int64_t rows, std::int64_t all, double factor) {
  const Plan& plan = c_.plan;
  const std::int64_t first = static_cast<std::int64_t>(c_.replica()) * plan.micro_batches;
  const auto begin = [&](std::int64_t i) { return all * i / plan.micro_shards; };
  const std::int64_t mine = begin(first + plan.micro_batches) - begin(first);
  WEFT_REQUIRE(rows == mine,
               "train_step: with micro_shards replica " + std::to_string(c_.replica()) + " of " +
                   std::to_string(c_.replicas().size()) +
                   " must have samples floor(n r / replicas) to floor(n (r + 1) / replicas) of all "
                   "n, here " +
                   std::to_string(mine) + ", not " + std::to_string(rows));
  parts_.clear();
  for (std::int64_t i = first; i < first + plan.micro_batches; ++i) {
    const std::int64_t of_part = begin(i + 1) - begin(i);
    const double share = static_cast<double>(of_part) / static_cast<double>(all);
    parts_.push_back({begin(i) - begin(first), of_part, 1, factor * share * plan.micro_batches});
  }
  losses_.assign(static_cast<std::size_t>(plan.micro_shards), 0);
}

// Micro-batches without a row get one row that does not count: a copy of the first sample, or zeros
// without a sample. Experts and joint batch norms would count it, so they get none. Micro-shards
// are copies, so that they have the same strides wherever they are computed.
std::vector<Tensors> MicroBatches::deal(const Tensors& tensors, std::int64_t rows,
                                        const char* what) const {
  std::vector<Tensors> to(parts_.size());
  for (const at::Tensor& whole : tensors) {
    WEFT_REQUIRE(whole.dim() > 0 && whole.size(0) == rows,
                 std::string("all ") + what +
                     " must have one entry per sample along the first dimension, like the first "
                     "input");
    std::vector<std::int64_t> one = whole.sizes().vec();
    one[0] = 1;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const at::Tensor piece = !is_made_up(parts_[i])
                                   ? whole.narrow(0, parts_[i].begin, parts_[i].rows)
                               : rows > 0 ? whole.narrow(0, 0, 1).clone()
                                          : at::zeros(one, whole.options());
      to[i].push_back(c_.plan.micro_shards > 0 ? piece.clone() : piece);
    }
  }
  return to;
}

std::vector<Tensors> MicroBatches::cut(const Tensors& inputs) const {
  return deal(inputs, inputs[0].size(0), "inputs");
}

// Adds a tensor with the reported number of rows before the targets, and the weight after them.
MicroBatches::Cut MicroBatches::cut(const Tensors& inputs, const Tensors& targets) const {
  Cut cut{this->cut(inputs), std::vector<Tensors>(parts_.size())};
  if (!c_.pipeline->has_last_stage()) return cut;
  WEFT_REQUIRE(!targets.empty(), "train_step: this rank needs the targets, but got none");
  const std::vector<Tensors> dealt = deal(targets, inputs[0].size(0), "targets");
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    Tensors& all = cut.targets[i];
    all.push_back(at::zeros({1}).expand({parts_[i].told}));
    all.insert(all.end(), dealt[i].begin(), dealt[i].end());
    all.push_back(at::scalar_tensor(parts_[i].weight, at::kDouble));
  }
  return cut;
}

// Without the outputs of made-up rows. If there is no other row, these have the shape of none.
Tensors MicroBatches::join(const std::vector<Tensors>& outputs) const {
  Tensors whole;
  for (std::size_t tensor = 0; !outputs.empty() && tensor < outputs[0].size(); ++tensor) {
    Tensors pieces;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (!is_made_up(parts_[i])) pieces.push_back(outputs[i].at(tensor));
    }
    whole.push_back(pieces.empty() ? outputs[0][tensor].narrow(0, 0, 0) : at::cat(pieces, 0));
  }
  return whole;
}

bool MicroBatches::is_made_up(const Part& part) const {
  return part.rows == 0 && c_.model.experts == 0 && !c_.plan.sync_batch_norm;
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

at::Tensor MicroBatches::loss_of(const Tensors& outputs, const Tensors& targets) {
  const Autocast autocast(c_.precision, c_.plan.device.type());
  const double weight = targets.back().item<double>();
  const Tensors wanted = on_device({targets.begin() + 1, targets.end() - 1}, c_.plan.device);
  // A mean over no samples is NaN, and the loss may ignore all made-up targets.
  const bool nothing = c_.model.experts == 0 && weight == 0;
  const at::Tensor loss =
      nothing ? loss_of_nothing(outputs) : in_one_line("the loss", outputs, [&] {
        return c_.model.loss(outputs, wanted, c_.contexts);
      });
  if (!nothing) check_loss(loss);
  if (!losses_.empty() && at::GradMode::is_enabled()) {
    const auto part = static_cast<std::size_t>(current_);
    const std::int64_t rows = parts_[part].rows;
    losses_[static_cast<std::size_t>(c_.replica()) * parts_.size() + part] =
        rows == 0 ? 0 : loss.item<double>() * static_cast<double>(rows);
  }
  return weight == 1 ? loss : loss * weight;
}

}  // namespace weft::parallel::internal

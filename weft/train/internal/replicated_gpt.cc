#include <ATen/ATen.h>

#include "weft/models/gpt_blocks.h"
#include "weft/parallel/recompute/recompute.h"
#include "weft/train/internal/replicated.h"
#include "weft/train/internal/step.h"
#include "weft/train/internal/text.h"

namespace weft::train::internal {
namespace {

at::Tensor recomputed(models::GptImpl& gpt, const at::Tensor& tokens, bool bf16) {
  const parallel::KeepState draws = parallel::keep_draws(gpt.tp);
  at::Tensor x = tokens;
  for (const auto& part : gpt.parts()) {
    const auto forward = [part, bf16](const at::Tensor& in) {
      const Autocast autocast(bf16);
      return part->forward(in);
    };
    x = part == gpt.head ? part->forward(x) : parallel::recompute_with({.random = false, .keep = {draws}}, forward, x);
  }
  return x;
}

}  // namespace

ReplicatedModel replicated_gpt(const LearnerParts& parts) {
  const auto seed = static_cast<std::uint64_t>(parts.config.get_int("train.seed"));
  const auto& recompute = parts.config.get_string("train.recompute");
  const bool bf16 = parts.config.get_string("train.precision") == "bf16";
  const parallel::TensorParallel tp(parts.mesh["tp"], seed);
  models::GptOptions options = gpt_options(parts.config, parts.vocabulary);
  options.selective = recompute == "selective";
  const auto gpt = std::make_shared<models::GptImpl>(options, tp);
  if (parts.weights == nullptr) draw_weights(*gpt, models::gpt_blocks(gpt->options), tp, seed);
  ReplicatedModel replica{.module = gpt, .tp = tp, .vocabulary = parts.vocabulary};
  replica.forward = replica.forward_in_training = [gpt](const at::Tensor& tokens) { return gpt->forward(tokens); };
  if (recompute == "full") replica.forward_in_training = [gpt, bf16](const at::Tensor& tokens) { return recomputed(*gpt, tokens, bf16); };
  replica.seed_dropout = [tp](std::uint64_t mask) { tp.seed_dropout(mask); };
  return replica;
}

}  // namespace weft::train::internal

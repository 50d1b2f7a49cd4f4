// Models of text that each replica along "dp" has, over DataParallel: what GPT and LSTM bring, and what they share (replicated.cc).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "weft/parallel/compose/model.h"
#include "weft/parallel/tensor/context.h"
#include "weft/train/internal/text_learner.h"

namespace weft::train::internal {

struct ReplicatedModel {
  std::shared_ptr<torch::nn::Module> module;
  parallel::TensorParallel tp;  // over whose ranks a replica's layers are split
  std::int64_t vocabulary = 0;
  // int64 [rows, length] -> this rank's logits [rows, length, columns]; the second in training, under autocast where the recipe wants it.
  std::function<at::Tensor(const at::Tensor&tokens)> forward, forward_in_training;
  // What the next forward drops is decided by this seed.
  std::function<void(std::uint64_t seed)> seed_dropout;
};

// Gives `model` the weights that the seed draws block by block, so that it makes the same model here and over stages. Collective over tp.
void draw_weights(torch::nn::Module& model, const parallel::BlockModel& blocks, const parallel::TensorParallel& tp, std::uint64_t seed);

// With the weights that the recipe's seed draws, where `parts` brings none.
ReplicatedModel replicated_gpt(const LearnerParts& parts);
ReplicatedModel replicated_lstm(const LearnerParts& parts);

}  // namespace weft::train::internal

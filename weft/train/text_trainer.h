// Trains a GPT or an LSTM on a text, as a recipe with data.name = "text" says: ranks along dp share each batch, ranks along tp a GPT's
// layers. An LSTM begins each window with a state of zeros, since windows come in any order.
//
//   data.file ─ tokenizer ─> tokens.bin ─ windows ─ Sampler ──> model ─ loss ─ backward ──> Optimizer ──> metrics
//                (rank 0, in the run folder)                                                      └─> evaluation, checkpoint
//
// A checkpoint holds whole tensors under the model's names, whatever parallel.tp was: it can be resumed with another split, read by Python
// (safetensors) and sampled from (generate.h).
#pragma once

#include <memory>
#include <string>

#include "weft/base/config.h"
#include "weft/comm/group.h"
#include "weft/train/trainer.h"

namespace weft::train {

bool is_text(const Config& config);

class TextTrainer {
 public:
  // Collective over `world`. Throws Error(kBadConfig) for what the recipe got wrong, and what Group's operations throw.
  TextTrainer(const Config& config, Group world, TrainerOptions options);
  ~TextTrainer();
  TextTrainer(const TextTrainer&) = delete;
  TextTrainer& operator=(const TextTrainer&) = delete;

  // Trains to the end. Collective. Call it once. Samples are windows of model.sequence tokens; accuracy is the share of tokens of the
  // held-out part that were the likeliest, loss the mean of a token there in nats.
  TrainResult run();

  // Of this run; empty on ranks other than 0.
  std::string run_folder() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::train

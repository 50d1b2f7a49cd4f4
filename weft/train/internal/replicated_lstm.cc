#include "weft/models/lstm.h"
#include "weft/train/internal/replicated.h"
#include "weft/train/internal/text.h"

namespace weft::train::internal {

// Windows come in any order, so each starts from a state of zeros.
ReplicatedModel replicated_lstm(const LearnerParts& parts) {
  const auto seed = static_cast<std::uint64_t>(parts.config.get_int("train.seed"));
  const parallel::TensorParallel alone(parts.mesh["tp"], seed);
  const auto lstm = std::make_shared<models::LstmImpl>(lstm_options(parts.config, parts.vocabulary), alone);
  if (parts.weights == nullptr) draw_weights(*lstm, models::lstm_blocks(lstm->options), alone, seed);
  ReplicatedModel replica{.module = lstm, .vocabulary = parts.vocabulary};
  replica.forward = replica.forward_in_training = [lstm](const at::Tensor& tokens) { return lstm->forward(tokens); };
  replica.seed_dropout = [alone](std::uint64_t mask) { alone.seed_dropout(mask); };
  return replica;
}

}  // namespace weft::train::internal

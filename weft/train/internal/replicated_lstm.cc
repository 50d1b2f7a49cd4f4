#include <ATen/Context.h>

#include "weft/models/lstm.h"
#include "weft/train/internal/replicated.h"
#include "weft/train/internal/seeded.h"
#include "weft/train/internal/text.h"

namespace weft::train::internal {

// Windows come in any order, so each starts from a state of zeros.
ReplicatedModel replicated_lstm(const LearnerParts& parts) {
  const auto lstm = seeded(static_cast<std::uint64_t>(parts.config.get_int("train.seed")),
                           [&] { return std::make_shared<models::LstmImpl>(lstm_options(parts.config, parts.vocabulary)); });
  ReplicatedModel replica{.module = lstm, .vocabulary = parts.vocabulary};
  replica.forward = replica.forward_in_training = [lstm](const at::Tensor& tokens) { return lstm->forward(tokens); };
  // Its layers drop by libtorch's own generator, which is the process's: ranks that are threads drop what chance decides.
  replica.seed_dropout = [](std::uint64_t mask) { at::manual_seed(mask); };
  return replica;
}

}  // namespace weft::train::internal

// Next-token prediction of a text model, for generation token by token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "weft/models/gpt.h"
#include "weft/models/lstm.h"

namespace weft::train::internal {

class Reader {
 public:
  virtual ~Reader() = default;
  // Logits [vocabulary] of the token after `context`, gathered over tp. `context` is that of the
  // last call plus at least one token. Collective over the model's ranks. Call it under
  // NoGradGuard.
  virtual at::Tensor logits(const std::vector<std::int64_t>& context) = 0;
};

// Sees the last sequence_length tokens and caches their keys and values. Once the context is
// longer, each token changes all of them, so they are recomputed. Call model->eval() first.
std::unique_ptr<Reader> make_reader(models::Gpt model);
// Sees all tokens, but keeps only the LSTM's state. Call model->eval() first.
std::unique_ptr<Reader> make_reader(models::Lstm model);

}  // namespace weft::train::internal

// Models as what generates text sees them: token by token.
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
  // The logits, whole, [vocabulary], of what follows `context`, which is that of the last call and
  // more, at least a token. Collective over the model's ranks; call it without gradient.
  virtual at::Tensor logits(const std::vector<std::int64_t>& context) = 0;
};

// Sees the last sequence_length tokens, and keeps their keys and values: once the context is longer
// all of them change with each token, and are computed again. eval() has been called.
std::unique_ptr<Reader> make_reader(models::Gpt model);
// Has seen all tokens, of which it keeps its state alone. eval() has been called.
std::unique_ptr<Reader> make_reader(models::Lstm model);

}  // namespace weft::train::internal

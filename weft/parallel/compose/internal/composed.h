// One rank's part of a composed model, and the parts that work on it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "weft/parallel/compose/internal/batch_runner.h"
#include "weft/parallel/compose/internal/composition.h"
#include "weft/parallel/compose/internal/model_state.h"
#include "weft/parallel/compose/internal/model_times.h"
#include "weft/parallel/compose/internal/optimizer_step.h"
#include "weft/parallel/compose/internal/verification.h"

namespace weft::parallel::internal {

class Composed : public Composition {
 public:
  Composed(BlockModel model_, Plan plan_, const Mesh& mesh_)
      : Composition(std::move(model_), std::move(plan_), mesh_) {
    calls = batches.calls();
    passes = compose(*this);
  }
  // Its parts hold references to it.
  Composed(const Composed&) = delete;
  Composed& operator=(const Composed&) = delete;

  ModelTimes times{*this};
  BatchRunner batches{*this, times};
  Verifier verifier{*this, [this](const Tensors& inputs, const Tensors& targets, int shift) {
                      return batches.checksums_of(inputs, targets, shift);
                    }};
  OptimizerStep optimizer{*this, batches, verifier, times};
  ModelState state{*this};  // loads and saves
  // Name and description of each pass.
  std::vector<std::pair<std::string, std::string>> passes;
};

}  // namespace weft::parallel::internal

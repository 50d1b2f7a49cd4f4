// Hooks on the trained parameters of a model, since only autograd knows when a gradient is
// complete.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "weft/engine/internal/change_marks.h"
#include "weft/engine/internal/param_list.h"

namespace weft::engine::internal {

class GradientHooks {
 public:
  // `params` outlives it.
  explicit GradientHooks(const ParamList& params)
      : params_(params), hooked_(params.trained()), versions_(params.trained()) {}

  // From now on, backward() calls before() before it adds to a gradient, and ready(param) after it.
  // Parameters may outlive this class, and call both then too. Call it once.
  void install(std::function<void()> before, const std::function<void(int param)>& ready);
  // Installs those hooks again that the program has taken away, as by torch::load(). Before each
  // forward pass.
  void commit();
  // backward() has made this gradient.
  void note(int param);
  // True if the program has dropped all gradients that were noted.
  bool are_dropped() const;

  // Called within backward() and grad(). If it is grad() of parameters, their hooks do not run.
  void note_grad();
  // A parameter that the program has changed since such a grad(), without a backward() after it;
  // null: none.
  const Param* changed_since_grad() const;

 private:
  const ParamList& params_;
  std::function<void()> before_;
  std::vector<std::shared_ptr<void>> hooked_;  // by parameter
  // By parameter, as it was at note_grad(); empty: no such grad(). The optimizers of libtorch write
  // through data(), which leaves the version as it is.
  std::vector<LineSums> at_grad_;
  std::vector<std::int64_t> versions_;  // by parameter: its gradient's, when backward() has made it
};

}  // namespace weft::engine::internal

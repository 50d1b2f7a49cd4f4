// Keeps gradients that are not those of one process out of the program's reach, from backward()
// until zero_grad() or the next backward(): parts of averages, or gradients that other ranks hold.
//
// Meanwhile grad() of each parameter has its sizes and no memory. Use of its values, as in
// clip_grad_norm_(), throws an error of libtorch whose text names the parameter and what to call.
// Costs two moves of a tensor for each parameter and step.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "weft/engine/internal/param_list.h"

namespace weft::engine::internal {

class HiddenGradients {
 public:
  // `params` outlives it. Texts are "the gradient of 'fc.weight' " + `why`.
  HiddenGradients(const ParamList& params, std::string why);
  // Shows them.
  ~HiddenGradients();
  HiddenGradients(const HiddenGradients&) = delete;
  HiddenGradients& operator=(const HiddenGradients&) = delete;

  bool are_hidden() const { return hidden_; }
  void hide();
  // Gives grad() back what it had. A gradient that the program has replaced or dropped since hide()
  // stays as it is.
  void show();
  // The first parameter with such a gradient; null: there is none.
  const Param* changed() const;

 private:
  at::Tensor& grad_of(std::size_t param) const;

  const ParamList& params_;
  const std::string why_;
  // By parameter: what grad() is while hidden (made once), and what it was.
  std::vector<at::Tensor> refusing_, kept_;
  bool hidden_ = false;
};

}  // namespace weft::engine::internal

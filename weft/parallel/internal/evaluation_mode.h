// Evaluation mode of several modules for some time, shared by pipeline and compose.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <utility>
#include <vector>

namespace weft::parallel::internal {

// Sets modules to evaluation mode while this lives, and restores their modes afterwards.
class EvaluationMode {
 public:
  using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

  // Lists all modes before it changes one, since `roots` may have modules in common.
  explicit EvaluationMode(const Modules& roots) {
    for (const auto& root : roots) {
      for (const auto& module : root->modules())
        before_.emplace_back(module, module->is_training());
    }
    for (const auto& root : roots) root->eval();
  }
  ~EvaluationMode() {
    // Parents first, since train() also sets their children.
    for (const auto& [module, training] : before_) module->train(training);
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> before_;
};

}  // namespace weft::parallel::internal

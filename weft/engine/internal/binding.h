// A data-parallel model beside its engine: what outlives the groups that it is bound to.
#pragma once

#include <memory>
#include <optional>

#include "weft/engine/data_parallel.h"
#include "weft/engine/internal/model_group.h"
#include "weft/engine/internal/replica.h"

namespace weft::engine {

class Binding {
 public:
  Binding(std::shared_ptr<torch::nn::Module> module, DataParallelOptions options)
      : module_(std::move(module)), options_(std::move(options)) {}

  void bind(const Group& group);
  void unbind();
  bool is_bound() const { return replica_ != nullptr; }
  // Throws Error(kInvalidArgument) without a group.
  const std::shared_ptr<Replica>& replica() const;
  const Group& group() const;  // The one that bind() got. Throws as replica().
  void use_optimizer(OptimizerSpec spec);
  double lr() const;
  void set_lr(double lr);

  torch::nn::Module& module() const { return *module_; }
  const DataParallelOptions& options() const { return options_; }
  const std::optional<OptimizerSpec>& optimizer() const { return optimizer_; }

 private:
  const std::shared_ptr<torch::nn::Module> module_;
  const DataParallelOptions options_;
  std::optional<OptimizerSpec> optimizer_;  // its learning rate is that of the last set_lr()
  std::shared_ptr<const internal::ModelGroup> groups_;
  std::shared_ptr<Replica> replica_;
};

}  // namespace weft::engine

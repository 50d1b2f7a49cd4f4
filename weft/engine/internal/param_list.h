// The parameters of a model, trainable ones first, and what all ranks must have alike of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "weft/comm/group.h"
#include "weft/engine/block.h"
#include "weft/engine/internal/crossing.h"
#include "weft/engine/internal/unit.h"

namespace weft::engine::internal {

class ParamList {
 public:
  // Throws Error(kInvalidArgument) if none is trainable, if two have the same name, or if two have
  // memory in common.
  explicit ParamList(const std::vector<Block>& blocks);
  ParamList(const ParamList&) = delete;
  ParamList& operator=(const ParamList&) = delete;

  std::vector<Param>& all() { return params_; }
  const std::vector<Param>& all() const { return params_; }
  std::size_t size() const { return params_.size(); }
  Param& operator[](std::size_t param) { return params_[param]; }
  const Param& operator[](std::size_t param) const { return params_[param]; }
  // So many of them, the first ones, require gradients.
  std::size_t trained() const { return trained_; }
  std::vector<std::string> names() const;
  // True if this rank's parameters are on a device. Throws Error(kInvalidArgument) if they are on
  // several.
  bool is_on_device() const;
  // Collective: throws Error(kInvalidArgument) with the name of the first parameter that differs on
  // any rank. Returns the number of ranks whose parameters are on a device. Numbers the model.
  int check_same(const Group& group);
  ModelName model_name() const { return {number_, params_.front().name}; }

 private:
  std::vector<Param> params_;
  std::size_t trained_ = 0;
  std::int64_t number_ = 0;  // ModelName::number
};

}  // namespace weft::engine::internal

// Test helper: the whole state of a ParallelModel on every rank.
#pragma once

#include <torch/serialize.h>
#include <torch/types.h>

#include <sstream>
#include <string>
#include <vector>

#include "weft/comm/texts.h"
#include "weft/parallel/compose/parallelize.h"

namespace weft::parallel::internal {

inline ParallelModel::NamedTensors state_on_all(ParallelModel& model, const Group& world) {
  std::string names;
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : model.state()) {
    names += name + '\n';
    tensors.push_back(tensor);
  }
  std::ostringstream values;
  torch::save(tensors, values);
  std::istringstream all(comm::broadcast_text(world, values.str())),
      lines(comm::broadcast_text(world, names));
  torch::load(tensors, all);
  ParallelModel::NamedTensors state;
  for (std::string name; std::getline(lines, name);)
    state.emplace_back(name, tensors[state.size()]);
  return state;
}

}  // namespace weft::parallel::internal

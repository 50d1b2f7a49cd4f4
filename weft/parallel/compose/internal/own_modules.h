// The modules that the caller gave to blocks_of(). Each rank has all of them. It trains the blocks
// of its stages; the others would keep their initial values.
//
//   step, load   forget(): modules of other stages lose their values, and refuse operations
//   the end      gather(): all modules get the trained values, some in new memory
//   train        attach(): parameters that the engine gathers block by block are its views again
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "weft/checkpoint/slice.h"
#include "weft/comm/group.h"
#include "weft/parallel/compose/model.h"

namespace weft::parallel::internal {

struct Stage;

class OwnModules {
 public:
  OwnModules() = default;
  OwnModules(const BlockModel& model, const std::vector<Stage>& stages);

  // True if the model has no modules of the caller.
  bool empty() const { return trained_.empty() && elsewhere_.empty(); }
  // The trained values have changed, on other ranks too. Not collective.
  void forget();
  // Before training: gives the engine back what gather() and refuse() have replaced. `held` returns
  // this rank's slices of the parameters; it is called only if there is something to give back.
  // Memory that the program has given a parameter, as by torch::load(), stays: the engine takes its
  // values. Throws Error(kInvalidArgument) if the program has changed values in place.
  void attach(const std::function<checkpoint::Slices()>& held);
  // Bytes that gather() allocates on this rank.
  std::int64_t missing_bytes() const;
  // Fills every tensor that has no trained values here. `mine`: this rank's slices of the
  // parameters and buffers; all ranks' slices make up the whole, once. Costs no traffic if no rank
  // misses a value, else one broadcast of each value. Collective.
  void gather(const Group& world, const checkpoint::Slices& mine);
  // Operations on tensors without trained values throw an error that ends with `advice`.
  void refuse(const std::string& advice);

 private:
  struct Named {
    std::string name;  // in the whole model
    at::Tensor tensor;
    // While the tensor has other memory: what the engine uses, and what the tensor got.
    at::Tensor view = {}, given = {};
    at::Tensor refusal = {};  // of another stage: in place of values
  };
  std::vector<Named*> missing();
  void detach(Named& one, const at::Tensor& values);
  void reattach();

  std::vector<Named> trained_;    // of this rank's stages
  std::vector<Named> elsewhere_;  // of other stages alone
  bool is_whole_ = false;         // elsewhere_ has the values of now
  bool detached_ = false;         // some of trained_ have other memory than the engine's
};

}  // namespace weft::parallel::internal

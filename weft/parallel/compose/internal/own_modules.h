// The modules that the caller gave to blocks_of(). Each rank has all of them. It trains the blocks
// of its stages; the others would keep their initial values.
//
//   step, load   forget(): modules of other stages lose their values, and refuse operations; a
//                program may load values there, which stay until the next step
//   the end      gather(): all modules get the trained values, some in new memory
//   train        attach(): parameters that the engine gathers block by block are its views again
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
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
  // Before training: gives the engine back what gather() and refuse() have replaced. If the program
  // has changed the values, or has given a parameter other memory, as by torch::load(), the memory
  // stays: the engine takes its values. Throws Error(kInvalidArgument) if another model has some of
  // these modules, since both engines would take their gradients.
  void attach();
  // Notes which tensors have got other memory from the program, as by torch::load(), since forget()
  // and gather(). For check_loads(), before the engine takes the values. attach() does it too.
  void note_loads();
  // True if tensors of other stages alone are among them.
  bool has_loaded_elsewhere() const;
  // Throws Error(kInvalidArgument) on all ranks if a rank has loaded a tensor that the ranks of its
  // stage have not. Collective.
  void check_loads(const Group& world) const;
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
    std::uint32_t checksum = 0;  // of the given values
    at::Tensor refusal = {};     // of another stage: in place of values
    c10::Storage memory = {};    // that the program has not given it
    bool loaded = false;         // it had other memory in note_loads()
  };
  std::vector<Named*> missing();
  void detach(Named& one, const at::Tensor& values);
  class Claim;
  void reattach();
  void forget_loads();

  std::vector<Named> trained_;    // of this rank's stages
  std::vector<Named> elsewhere_;  // of other stages alone
  std::shared_ptr<Claim> claim_;  // null: no modules of the caller
  bool is_whole_ = false;         // elsewhere_ has the values of now
  bool detached_ = false;         // some of trained_ have other memory than the engine's
};

}  // namespace weft::parallel::internal

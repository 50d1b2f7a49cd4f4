// The state of a composed model as one logical model: whole tensors, or slices that each rank saves
// and loads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "weft/parallel/compose/internal/composition.h"

namespace weft::parallel::internal {

// See ParallelModel for the functions of the same name.
class ModelState {
 public:
  using NamedTensors = ParallelModel::NamedTensors;

  // `composition` must outlive it.
  explicit ModelState(Composition& composition) : c_(composition) {}

  NamedTensors state();
  void load_state(const NamedTensors& state);
  // The gradients, divided by `scale`.
  NamedTensors gradients(double scale);
  checkpoint::Parts shards();
  ParallelModel::Held held();
  void load_shards(const checkpoint::SliceSource& source);
  void load_weights(const checkpoint::SliceSource& source);
  bool load_codec(const checkpoint::Reader& saved);
  void take_changes();
  void check_changes();
  // Writes the whole model into the modules of the program.
  void gather();

 private:
  // Collects the named tensors of all stages on rank 0 of the world. `of` returns those of one
  // stage, by their own names, on rank 0 of its shards.
  NamedTensors whole(const std::function<engine::Sharded::NamedTensors(Stage&)>& of,
                     bool with_buffers = false);
  void load(Stage& stage, const std::map<std::string, at::Tensor>& state);
  std::string mismatch(const std::map<std::string, at::Tensor>& state) const;
  void check_on_all_ranks(const checkpoint::SliceSource& source, bool weights_only);
  std::vector<std::span<float>> codec_memory();
  std::vector<std::int64_t> layout() const;
  checkpoint::Slices scaler_slices();
  checkpoint::Slices codec_slices();
  checkpoint::Slices buffer_slices();

  Composition& c_;
};

// ParallelModel::cuts_of().
std::vector<int> saved_cuts(const Mesh& mesh, const checkpoint::Reader& saved);

// ParallelModel::compare_replicas(). Collective.
std::vector<ParallelModel::Difference> compare_replicas(Composition& composition,
                                                        ModelState& state);

}  // namespace weft::parallel::internal

#include "weft/train/internal/text_learner.h"

#include "weft/base/error.h"

namespace weft::train::internal {
namespace {

bool composed(const Config& config, const Mesh& mesh) {
  return mesh.size("fsdp") > 1 || mesh.size("pp") > 1 || mesh.size("cp") > 1 || mesh.size("ep") > 1 ||
         config.get_int("model.experts") > 0 || config.get_int("parallel.micro_batches") > 1 || config.get_bool("train.reproducible") ||
         config.get_string("train.precision") == "f16" ||
         (config.get_string("model.name") == "lstm" && config.get_string("train.recompute") != "none") ||
         (mesh.size("tp") > 1 && (config.get_double("optimizer.max_grad_norm") > 0 || config.get_string("parallel.codec") != "none"));
}

}  // namespace

Mesh text_mesh(const Config& config, const Group& world) {
  std::vector<plan::Axis> axes;
  for (const std::string name : {"pp", "dp", "fsdp", "ep", "cp", "tp"}) {
    const int size = static_cast<int>(config.get_int("parallel." + name));
    if (size != 1 || name == "dp") axes.push_back({name, size});
  }
  return Mesh(world, std::move(axes));
}

void check_text_learner(const Config& config, const Mesh& mesh) {
  if (composed(config, mesh)) check_composed(config, mesh);
}

std::unique_ptr<TextLearner> make_text_learner(const LearnerParts& parts) {
  return composed(parts.config, parts.mesh) ? make_composed(parts) : make_replicated(parts);
}

}  // namespace weft::train::internal

#include <ATen/ATen.h>

#include "tests/chaos/internal/run.h"
#include "tests/chaos/internal/sha256.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/reader.h"

namespace weft::chaos::internal {

std::string digest_of(const std::string& checkpoints) {
  const auto newest = checkpoint::latest(checkpoints);
  if (!newest.folder) return "";
  const checkpoint::Reader reader(*newest.folder);
  Sha256 sha;
  sha.add("step " + std::to_string(reader.step()) + "\n");
  for (const std::string& part : reader.parts()) {
    for (const auto& [name, shape] : reader.shapes(part)) {
      const at::Tensor tensor = reader.read(part, name).contiguous();
      std::string about = part + " " + name + " " + c10::toString(tensor.scalar_type());
      for (const std::int64_t size : shape) about += " " + std::to_string(size);
      sha.add(about + "\n");
      sha.add(tensor.const_data_ptr(), tensor.nbytes());
    }
  }
  return sha.hex();
}

}  // namespace weft::chaos::internal

// The content of a safetensors file into a writer.
#pragma once

#include "weft/checkpoint/internal/file_writer.h"
#include "weft/checkpoint/safetensors.h"

namespace weft::checkpoint::internal {

void write_tensors(FileWriter& out, const TensorFile& file);

}  // namespace weft::checkpoint::internal

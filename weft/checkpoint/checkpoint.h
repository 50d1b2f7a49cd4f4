// A training run's state on disk, complete or absent, as one process has it. Ranks that each have a part: sharded.h.
//
//   ckpt/step-00000938/model.safetensors      the parts, by name
//                     /optimizer.safetensors
//                     /state.json              epoch, position, seed, …: strings by name
//                     /manifest                sizes, and a CRC-32C of each MiB; written last
//
// Written aside as ckpt/.tmp-step-…, each file and the folder flushed, renamed, ckpt/ flushed. After a crash or a power cut at any instant
// there is the folder with all of it or none. One writer a `dir` at a time (rank 0); any number of readers.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "weft/checkpoint/safetensors.h"

namespace weft::checkpoint {

struct Checkpoint {
  std::int64_t step = 0;                   // names the folder
  std::map<std::string, TensorMap> parts;  // "model", "optimizer", …: letters, digits, '_' and '-'
  StringMap state;
};

struct SaveOptions {
  int keep = 3;  // the newest so many stay, older ones are removed after the new one is safe; 0 keeps all
};

// Returns the folder. One of the same step is replaced, also at one instant. Needs no memory beyond one tensor that isn't contiguous.
// Throws as save_safetensors does; then all older checkpoints are as they were and nothing is left behind.
std::string save(const std::string& dir, const Checkpoint& checkpoint, SaveOptions options = {});

// Reads all of it, whole, whatever ranks wrote it. Every size and checksum is verified. Throws Error(kCorrupt) naming the file at fault.
Checkpoint load(const std::string& folder);

// Reads every byte: sizes, checksums, headers and indices. Throws Error(kCorrupt) naming the file at fault.
void verify(const std::string& folder);

struct Latest {
  std::optional<std::string> folder;  // of the newest complete checkpoint; none where there is none
  std::vector<std::string> damaged;   // one line for each newer one that was passed over: what is wrong with it
};

// Verifies from the newest down, until one is whole. A `dir` that doesn't exist holds none.
Latest latest(const std::string& dir);

}  // namespace weft::checkpoint

// Checkpoints: the state of a training run on disk, complete or absent, as one process has it.
// save() with Shards, and AsyncSaver, are for state that is divided over ranks (sharded.h).
//
//   ckpt/step-00000938/model.safetensors      one file for each part
//                     /optimizer.safetensors
//                     /state.json             epoch, position, seed, …: strings by name
//                     /manifest               sizes, and a CRC-32C of each MiB; written last
//
// The folder is written aside as ckpt/.tmp-step-…, each file and the folder are flushed, the folder
// is renamed, and ckpt/ is flushed. After a crash or a power cut at any instant, the whole folder
// is there or none of it. One writer at a time uses a `dir` (rank 0); any number of readers may. A
// save locks `dir` with the file ckpt/.saving, so a second writer gets Error(kUnavailable).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/checkpoint/safetensors.h"

namespace weft::checkpoint {

struct Checkpoint {
  std::int64_t step = 0;  // Number in the folder's name.
  // Parts "model", "optimizer", …: names of at most 101 letters, digits, '_' and '-'.
  std::map<std::string, TensorMap> parts;
  StringMap state;
};

struct SaveOptions {
  // Number of newest checkpoints to keep. Older ones are removed once the new one is safe. 0: all.
  int keep = 3;
  // Steps of checkpoints that stay besides these. Rank 0 decides.
  std::vector<std::int64_t> also = {};
  // Steps of checkpoints that are known to be damaged (Latest). They do not count towards `keep`.
  // Rank 0 decides.
  std::vector<std::int64_t> damaged = {};
};

// Saves a checkpoint and returns its folder. Replaces a checkpoint of the same step, also at one
// instant. Needs no memory beyond one tensor that is not contiguous. Throws as save_safetensors()
// does; then all older checkpoints are unchanged and nothing is left behind.
std::string save(const std::string& dir, const Checkpoint& checkpoint, SaveOptions options = {});

// Reads a whole checkpoint, written by any number of ranks. Verifies every size and checksum.
// Throws Error(kCorrupt), naming the file at fault.
Checkpoint load(const std::string& folder);

// Reads every byte and verifies sizes, checksums, headers and indices. Throws Error(kCorrupt),
// naming the file at fault.
void verify(const std::string& folder);

struct Latest {
  // Folder of the newest complete checkpoint; empty if there is none.
  std::optional<std::string> folder;
  // One line for each newer checkpoint that was passed over, with the reason.
  std::vector<std::string> damaged;
  std::vector<std::int64_t> damaged_steps;  // Their steps, in the same order.
};

// Verifies checkpoints from the newest down, until one is whole. A `dir` that does not exist holds
// none. A checkpoint that a job removes or replaces meanwhile does not count as damaged: the search
// starts again. Throws Error(kUnavailable) if that happens at each of many tries.
Latest latest(const std::string& dir);

// The folder of latest(). Calls `passed_over` with the line of each newer, damaged checkpoint.
// Throws Error(kInvalidArgument) with the text `if_none` if there is no checkpoint, and
// Error(kCorrupt) if all are damaged.
std::string newest_complete(const std::string& dir, const std::string& if_none,
                            const std::function<void(const std::string& line)>& passed_over);

// Step of a checkpoint by the name of its folder, "step-00000938"; nullopt for any other name.
std::optional<std::int64_t> step_of(std::string_view name);

// Step of the newest checkpoint, complete or damaged; -1 if there is none. Reads no file.
std::int64_t newest_step(const std::string& dir);

}  // namespace weft::checkpoint

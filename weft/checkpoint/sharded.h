// Saves a state that is divided over ranks: every rank writes its own slices, while training goes
// on.
//
//   ckpt/step-00000938/model-00001-of-00004.safetensors      rank 0's slices of the part "model"
//                     /model-00002-of-00004.safetensors      rank 1's, and so on
//                     /model.safetensors.index.json          which file has which tensor or slice (docs/checkpoints.md)
//                     /state.json                            strings by name
//                     /manifest                              sizes, and a CRC-32C of each MiB; written last
//
// A checkpoint is complete or absent at every instant: written aside as ckpt/.tmp-step-…, each file
// and the folder flushed, then renamed. All ranks write into one folder, so several hosts need a
// shared file system. One writer a `dir` at a time; any number of readers.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/slice.h"
#include "weft/comm/group.h"

namespace weft::checkpoint {

// One rank's part of a state.
struct Shards {
  std::int64_t step = 0;
  // "model", "optimizer", …: letters, digits, '_' and '-'. All ranks' slices of a tensor make up
  // the whole of it, without overlap. No tensor's name ends with ']'.
  Parts parts;
  StringMap state;  // rank 0's counts
};

// Collective over `group`; all ranks give the same `dir`, step and options. Returns the folder when
// it is complete. Takes no memory beyond one tensor that isn't contiguous. Where any rank fails, or
// the slices do not make up whole tensors, all ranks throw the error of the first one that failed;
// older checkpoints are then as they were and nothing is left behind.
std::string save(const std::string& dir, const Shards& shards, const Group& group, SaveOptions options = {});

// Saves in a thread of its own. The thread calls collectives of a group that it has for itself.
class AsyncSaver {
 public:
  struct Result {
    std::int64_t step = 0;
    std::string folder;                 // empty: it failed
    std::optional<Error> error;         // the same on all ranks
    std::int64_t bytes = 0;             // of this rank
    std::chrono::nanoseconds stall{0};  // that save() took on this rank
    std::chrono::nanoseconds whole{0};  // from the start of save() until the checkpoint was complete
  };

  // Collective. Slices of up to `staging_bytes` are copied and written later, the others before
  // save() returns: 0 writes all at once. Memory for copies is kept from one save to the next.
  explicit AsyncSaver(const Group& group, std::int64_t staging_bytes = INT64_MAX);
  // Waits for what is being written.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Makes the memory for copies of this state in the background, so that the first save() is as
  // fast as the later ones. Not collective.
  void reserve(const Shards& shards);
  // Collective. Returns when the slices may change again. Waits for the save before, whose result
  // it gives. Throws Error(kInvalidArgument) for parts that cannot be written; errors of the disk
  // come with the result.
  std::optional<Result> save(const std::string& dir, const Shards& shards, SaveOptions options = {});
  // The result of a save that has ended, once. Not collective.
  std::optional<Result> poll();
  // Collective. The same, after waiting for it.
  std::optional<Result> wait();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The newest complete checkpoint. Collective: each rank verifies its share of the bytes, and all
// get the same answer.
Latest latest(const std::string& dir, const Group& group);

}  // namespace weft::checkpoint

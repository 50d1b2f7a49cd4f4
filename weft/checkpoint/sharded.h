// Saves a state that is divided over ranks: every rank writes its own slices, while training goes
// on.
//
//   ckpt/step-00000938/model-00001-of-00004.safetensors   rank 0's slices of the part "model"
//                     /model-00002-of-00004.safetensors   rank 1's, and so on
//                     /model.safetensors.index.json       file of each tensor or slice
//                     /state.json                         strings by name
//                     /manifest                           sizes, and a CRC-32C of each MiB;
//                                                         written last
//
// docs/checkpoints.md describes the format. A checkpoint is complete or absent at every instant: it
// is written aside as ckpt/.tmp-step-…, each file and the folder are flushed, then the folder is
// renamed. All ranks write into one folder, so several hosts need a shared file system. One writer
// at a time uses a `dir`; any number of readers may. A save locks `dir` with the file ckpt/.saving,
// so a second writer gets Error(kUnavailable).
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
  // Parts "model", "optimizer", …: names of at most 101 letters, digits, '_' and '-'. All ranks'
  // slices of a tensor make up the whole tensor, without overlap. No tensor's name ends with ']'.
  Parts parts;
  StringMap state;  // Strings by name; rank 0's are saved.
};

// Throws Error(kInvalidArgument), as save() would, if these parts of a rank cannot be written. For
// use before training, which would end with the first save. Not collective.
void check_parts(const Parts& parts);

// Saves all ranks' slices and returns the folder when it is complete. Collective over `group`; all
// ranks pass the same `dir`, step and options. Takes no memory beyond one tensor that is not
// contiguous. If a rank fails, or the slices do not make up whole tensors, all ranks throw the
// error of the first rank that failed. Older checkpoints are then unchanged and nothing is left
// behind.
std::string save(const std::string& dir, const Shards& shards, const Group& group,
                 SaveOptions options = {});

// Saves in a thread of its own. The thread calls collectives of a group that only it uses.
class AsyncSaver {
 public:
  struct Result {
    std::int64_t step = 0;
    std::string folder;          // Folder of the checkpoint. Empty: the save failed.
    std::optional<Error> error;  // Error of the save, the same on all ranks.
    std::int64_t bytes = 0;      // Bytes that this rank wrote.
    // Time that save() took on this rank.
    std::chrono::nanoseconds stall{0};
    // Time from the start of save() until the checkpoint was complete.
    std::chrono::nanoseconds whole{0};
  };

  // Slices of up to `staging_bytes` are copied and written later; the others are written before
  // save() returns. 0: all are written before save() returns. The memory for copies is kept from
  // one save to the next. Collective.
  explicit AsyncSaver(const Group& group, std::int64_t staging_bytes = INT64_MAX);
  // Waits for the save that is under way.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Allocates the memory for copies of this state in the background, so that the first save() is as
  // fast as later ones. Not collective.
  void reserve(const Shards& shards);
  // Starts a save. Returns when the slices may change again. Waits for the previous save and
  // returns its result. Errors of the disk, and kInvalidArgument for parts that cannot be
  // written, come with the result of this save. Collective.
  std::optional<Result> save(const std::string& dir, const Shards& shards,
                             SaveOptions options = {});
  // Returns the result of a save that has ended, once. Not collective.
  std::optional<Result> poll();
  // As poll(), after waiting for the save. Collective.
  std::optional<Result> wait();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Returns the newest complete checkpoint, as latest() of one process does. Each rank verifies its
// share of the bytes, and all ranks get the same answer. Collective.
Latest latest(const std::string& dir, const Group& group);

}  // namespace weft::checkpoint

// One save of a checkpoint: the files that a rank writes, and how the ranks agree that the save is
// complete.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/error.h"
#include "weft/checkpoint/sharded.h"

namespace weft::checkpoint::internal {

// The ranks that save together. The functions may be empty if there is only one rank.
struct Ranks {
  int rank = 0, size = 1;
  // Collective. Returns every rank's text, ordered by rank, on every rank.
  std::function<std::vector<std::string>(const std::string& mine)> exchange;
  // Collective. The same, but only rank 0 gets the texts.
  std::function<std::vector<std::string>(const std::string& mine)> collect;
};
Ranks ranks_of(const Group& group);

// An error as one line of text that another rank parses.
std::string error_text(const Error& error);
std::pair<Errc, std::string> read_error_text(const std::string& text);

// A file that this rank writes: the bytes of the header, then of the tensors.
struct PlannedFile {
  std::string part, name;
  std::string header;
  Slices slices;                  // in the order of the entries
  std::vector<std::string> keys;  // their names in the file
  std::int64_t bytes = 0;         // of the whole file
  std::int64_t tensor_bytes = 0;  // of its tensors
  // A copy of all bytes. Empty: the bytes are read from the tensors.
  std::span<const std::byte> image = {};
};

struct SaveJob {
  std::string dir;
  std::int64_t step = 0;
  StringMap state;
  SaveOptions options;
  std::vector<std::string> parts;
  std::vector<PlannedFile> files;
  std::optional<Error> refused;    // why this rank's shards cannot be written
  std::function<void()> released;  // called when no tensor will be read any more
};

// Has no side effects. Sets `refused` if a name or tensor cannot be written.
SaveJob plan_save(const std::string& dir, const Shards& shards, SaveOptions options, int rank,
                  int ranks);

// Collective, in any thread. If a rank fails, all ranks throw the error of the first rank that
// failed.
std::string run_save(const SaveJob& job, const Ranks& ranks);

}  // namespace weft::checkpoint::internal

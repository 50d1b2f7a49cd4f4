// One save: what a rank writes, and how ranks agree that it is complete.
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

// The ranks that save together. One rank needs no functions.
struct Ranks {
  int rank = 0, size = 1;
  // Collective: every rank's text, by rank, on every rank.
  std::function<std::vector<std::string>(const std::string& mine)> exchange;
  // Collective: the same, on rank 0; the others get nothing.
  std::function<std::vector<std::string>(const std::string& mine)> collect;
};
Ranks ranks_of(const Group& group);

// An error in a line that another rank reads.
std::string error_text(const Error& error);
std::pair<Errc, std::string> read_error_text(const std::string& text);

// A file that this rank writes: its bytes are the header's, then the tensors'.
struct PlannedFile {
  std::string part, name;
  std::string header;
  Slices slices;                  // in the order of the entries
  std::vector<std::string> keys;  // their names in the file
  std::int64_t bytes = 0;         // of the whole file
  std::int64_t tensor_bytes = 0;  // of its tensors
  // A copy of all bytes; empty: they are taken from the tensors.
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

// Pure. Names and tensors that cannot be written leave `refused`.
SaveJob plan_save(const std::string& dir, const Shards& shards, SaveOptions options, int rank,
                  int ranks);

// Collective, in any thread. Throws on all ranks what the first failing rank met.
std::string run_save(const SaveJob& job, const Ranks& ranks);

}  // namespace weft::checkpoint::internal

// The numbers of a run, step by step: to metrics.jsonl for programs and to the event file for
// TensorBoard.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "weft/observe/event_file.h"

namespace weft::observe {

// {"step":12,"epoch":0,"loss":0.31,…}\n with the values in their order; NaN and infinities become
// null, which JSON has in their place.
std::string metrics_line(std::int64_t step, std::int64_t epoch, const Values& values);

// One rank, as the ranks of a run last reported themselves.
struct RankState {
  double compute_ms = 0;    // mean time of forward and backward of a step
  double memory_bytes = 0;  // held by the rank's process
  double sent_bytes = 0;    // payload of messages to other ranks since the start of the process
  // Memory of other ranks that collectives have read or written in place since then.
  double shared_bytes = 0;
};

// {"step":12,"ranks":[{"rank":0,"compute_ms":3.1,"memory_bytes":…,"sent_bytes":…,
// "shared_bytes":…},…]}
std::string ranks_json(std::int64_t step, std::span<const RankState> ranks);

// Writes both files of a run folder; only rank 0 makes one. Costs a few microseconds a record. Not
// for several threads at once.
class Metrics {
 public:
  // Appends to <folder>/metrics.jsonl and starts an event file. A run that goes on gives the first
  // step that is to come: records of it and of later steps, which a run that was cut short has left
  // behind, are dropped. Throws Error naming the path when that fails.
  explicit Metrics(const std::string& folder, std::int64_t first = 0);

  // One record. In the event file each name gets the prefix "<group>/": "train/loss". The line is
  // in the file when this returns. Throws Error when a file cannot be written.
  void add(const std::string& group, std::int64_t step, std::int64_t epoch, const Values& values);
  void flush() { events_.flush(); }
  // Replaces <folder>/ranks.json, which viewers read: they see the old file or the new one. Costs
  // about 0.1 ms; the file is not flushed to the disk. One that cannot be written is left out.
  void write_ranks(std::int64_t step, std::span<const RankState> ranks) const;

  const std::string& path() const { return path_; }
  const std::string& event_path() const { return events_.path(); }

 private:
  std::string path_;
  UniqueFd file_;
  EventFile events_;
};

}  // namespace weft::observe

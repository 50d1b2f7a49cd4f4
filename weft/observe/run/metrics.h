// Writes the metrics of a run, step by step: to metrics.jsonl for programs and to an event file for
// TensorBoard.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "weft/observe/run/event_file.h"
#include "weft/observe/run/record_file.h"

namespace weft::observe {

// {"step":12,"epoch":0,"loss":0.31,…}\n with the values in the given order. NaN and infinities
// become null, because JSON cannot represent them.
std::string metrics_line(std::int64_t step, std::int64_t epoch, const Values& values);

// The last reported state of one rank.
struct RankState {
  double compute_ms = 0;    // mean time of forward and backward per step
  double memory_bytes = 0;  // memory held by the rank's process
  double sent_bytes = 0;    // payload of messages to other ranks since the start of the process
  // Bytes that collectives read or wrote directly in the memory of other ranks since the start of
  // the process.
  double shared_bytes = 0;
  double waited_ms = 0;  // mean time per step that it waited for other ranks
  double step_ms = 0;    // mean time per step
  // Share of a step, 0 to 1, that the other ranks wait for it.
  double awaited_share = 0;
};

// {"step":12,"ranks":[{"rank":0,"compute_ms":3.1,"memory_bytes":…,"sent_bytes":…,
// "shared_bytes":…,"waited_ms":…,"awaited_share":…},…]}
std::string ranks_json(std::int64_t step, std::span<const RankState> ranks);

// Writes both files into a run folder. Only rank 0 creates one. A record costs a few microseconds.
// Not thread-safe.
class Metrics {
 public:
  // Appends to <folder>/metrics.jsonl and starts an event file. `first`: the first step that a
  // resumed run will do. The interrupted run may have left records of that step and later ones;
  // they are dropped. Records of steps up to `known` stay instead, and are not added again: a later
  // resumption can begin there. Throws Error, naming the path, if a file cannot be written.
  explicit Metrics(const std::string& folder, std::int64_t first = 0, std::int64_t known = -1);

  // Adds one record. In the event file, each name gets the prefix "<group>/": "train/loss"; a
  // record without values is not there. The line of metrics.jsonl is written before this returns. A
  // record that cannot be written, such as on a full disk, is lost. The first one is logged as an
  // error.
  void add(const std::string& group, std::int64_t step, std::int64_t epoch, const Values& values);
  void flush() { events_.flush(); }
  // Replaces <folder>/ranks.json atomically: a viewer reads either the old file or the new one.
  // Costs about 0.1 ms; the file is not synced to the disk. A write error is ignored.
  void write_ranks(std::int64_t step, std::span<const RankState> ranks) const;

  const std::string& path() const { return file_.path(); }
  const std::string& event_path() const { return events_.path(); }

 private:
  const std::int64_t known_;
  RecordFile file_;
  EventFile events_;
};

}  // namespace weft::observe

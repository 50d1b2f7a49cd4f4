// Writes scalars to an event file of TensorBoard: a sequence of TFRecords, each of which holds one
// protocol buffer `tensorflow.Event` (tensorflow/core/util/event.proto).
//
//   u64 length | u32 masked(length) | event | u32 masked(event)     (little endian)
//
//   masked(x) = ((c >> 15) | (c << 17)) + 0xa282ead8, where c = crc32c(x)
//
// An event with three scalars takes about 100 bytes. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/observe/run/record_file.h"

namespace weft::observe {

// Named values in the order in which they are written.
using Values = std::vector<std::pair<std::string, double>>;

// One TFRecord, and the events that it can hold; for tests and other writers. `wall_time` is in
// seconds since 1970.
std::string tf_record(std::string_view payload);
std::string version_event(double wall_time);
std::string scalar_event(double wall_time, std::int64_t step, const Values& values);
// Marks a resumed run (SessionLog.START): TensorBoard drops the values of `step` and later steps
// from earlier files.
std::string restart_event(double wall_time, std::int64_t step);

class EventFile {
 public:
  // Creates events.out.tfevents.<seconds>.<host>.<pid>.<n> in the folder, where n counts the files
  // of this process, and writes the version event. If a run resumes at step `first` > 0, also
  // writes restart_event(). Throws Error, naming the path, if the file cannot be created. On
  // a full disk, an error is logged instead, and all events are lost.
  explicit EventFile(const std::string& folder, std::int64_t first = 0);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // Adds the values of a step. A tag may have a group: "train/loss". Values are stored in single
  // precision, including NaN and infinities. Writes the pending events if they take at least 64 KiB
  // or if the last write was at least 2 s ago. Events that cannot be written are lost.
  void add(std::int64_t step, const Values& values);
  void flush();

  const std::string& path() const { return file_.path(); }

 private:
  RecordFile file_;
  std::string pending_;
  std::chrono::steady_clock::time_point flushed_;
};

}  // namespace weft::observe

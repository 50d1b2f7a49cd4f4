// Scalars as TensorBoard reads them: a file of TFRecords, each a protocol buffer `tensorflow.Event`
// (tensorflow/core/util/event.proto).
//
//   u64 length | u32 masked crc32c(length) | the event | u32 masked crc32c(the
//   event)        little endian masked(c) = ((c >> 15) | (c << 17)) +
//   0xa282ead8
//
// An event of three scalars is about 100 bytes. Not for several threads at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/base/file.h"

namespace weft::observe {

// Named values in the order in which they are written.
using Values = std::vector<std::pair<std::string, double>>;

// One framed record and the events that go into it, for tests and other writers. `wall_time` is in
// seconds since 1970.
std::string tf_record(std::string_view payload);
std::string version_event(double wall_time);
std::string scalar_event(double wall_time, std::int64_t step, const Values& values);
// A run that goes on: TensorBoard drops what earlier files hold from `step` on (SessionLog.START).
std::string restart_event(double wall_time, std::int64_t step);

class EventFile {
 public:
  // Creates events.out.tfevents.<seconds>.<host>.<pid>.<n> in the folder, where n counts the files
  // of this process, and writes the version event; for a run that goes on at step `first`, also
  // that what was written for it and later steps no longer counts. Throws Error naming the path
  // when that fails.
  explicit EventFile(const std::string& folder, std::int64_t first = 0);
  // Flushes; what cannot be written then is lost.
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // Adds the values at this step; tags may have groups: "train/loss". TensorBoard keeps single
  // precision; NaN and infinities are kept. Written when 64 KiB wait, or by the first add() that
  // comes 2 s after the last write. Throws Error when the file cannot be written.
  void add(std::int64_t step, const Values& values);
  void flush();

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  UniqueFd file_;
  std::string pending_;
  std::chrono::steady_clock::time_point flushed_;
};

}  // namespace weft::observe

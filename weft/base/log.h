// Log lines: for people on stderr, as JSON in the run folder; and the few ways in which weft writes
// a value as text.
//
//   log_info("epoch done", {{"epoch", 3}, {"loss", 0.31}});      // stderr: epoch done epoch=3
//                                                                // loss=0.31
//
// On stderr, rank 0 prints everything at or above the level and the other ranks only warnings and
// errors; at level debug every rank prints everything. The JSON file, when one is attached, gets
// the lines of every rank of this process. Each line is one write(), so that lines of several
// processes do not mix. Every function may be called from any thread.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/json/json_writer.h"

namespace weft {

enum class LogLevel { kDebug, kInfo, kWarn, kError, kOff };

// "debug", "info", "warn" (also "warning"), "error" (also "fatal"), "off", in any case, or torch's
// numbers 0 (info) to 3 (fatal).
std::optional<LogLevel> parse_log_level(std::string_view name);

// The level starts as WEFT_LOG_LEVEL, else TORCH_CPP_LOG_LEVEL, else info; an unknown value of
// either is warned about once.
void set_log_level(LogLevel level);

// "512 B", "1.5 KiB", "2.0 GiB".
std::string format_bytes(std::uint64_t bytes);
// "00:42", "12:05", "1:02:03"; negative and non-finite become "?".
std::string format_clock(double seconds);

// A named value of a log line, kept as the JSON that is written.
struct LogField {
  LogField(std::string field, std::string_view value)
      : name(std::move(field)), json(json_quote(value)) {}
  LogField(std::string field, const std::string& value)
      : LogField(std::move(field), std::string_view(value)) {}
  LogField(std::string field, const char* value)
      : LogField(std::move(field), std::string_view(value)) {}
  LogField(std::string field, bool value)
      : name(std::move(field)), json(value ? "true" : "false") {}
  LogField(std::string field, std::integral auto value)
      : name(std::move(field)), json(std::to_string(value)) {}
  LogField(std::string field, std::floating_point auto value)
      : name(std::move(field)), json(json_number(value)) {}

  std::string name;
  std::string json;
};

// The fields as one JSON object: {"epoch":3,"loss":0.31}.
std::string json_of(const std::vector<LogField>& fields);

// Writes a line. What cannot be written (a closed stderr, a full disk) is dropped: logging never
// ends a run.
void log(LogLevel level, std::string_view message, const std::vector<LogField>& fields = {});
inline void log_debug(std::string_view message, const std::vector<LogField>& fields = {}) {
  log(LogLevel::kDebug, message, fields);
}
inline void log_info(std::string_view message, const std::vector<LogField>& fields = {}) {
  log(LogLevel::kInfo, message, fields);
}
inline void log_warn(std::string_view message, const std::vector<LogField>& fields = {}) {
  log(LogLevel::kWarn, message, fields);
}
inline void log_error(std::string_view message, const std::vector<LogField>& fields = {}) {
  log(LogLevel::kError, message, fields);
}

// Who is speaking: rank 0 of 1 until set. For the whole process.
void set_rank(int rank, int world);

// The same for the calling thread, while it lives: ranks may be threads. Scopes nest.
class ThreadRank {
 public:
  ThreadRank(int rank, int world);
  ~ThreadRank();
  ThreadRank(const ThreadRank&) = delete;
  ThreadRank& operator=(const ThreadRank&) = delete;

 private:
  int rank_;
  int world_;
};

// Appends every line from here on to `path` as JSON: {"ts", "level", "rank", "message", "fields"};
// "ts" is UTC, in microseconds. Replaces a file attached before. Throws Error when the file cannot
// be opened; the former one then stays.
void attach_log_file(const std::string& path);
void detach_log_file();

// A line that stays below the log on a terminal, such as a progress bar that its owner has already
// drawn: log lines wipe its `columns` columns, print themselves, and draw `text` again. Empty text:
// there is none.
void set_status_line(std::string text, int columns);

}  // namespace weft

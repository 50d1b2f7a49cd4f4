#include "weft/base/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <mutex>
#include <utility>

#include "weft/base/file.h"
#include "weft/base/text/numbers.h"
#include "weft/base/text/variables.h"
#include "weft/base/text/words.h"

namespace weft {
namespace {

struct Speaker {
  int rank = 0;
  int world = 1;
};

struct State {
  std::mutex mutex;
  LogLevel level = LogLevel::kInfo;  // guarded by mutex
  Speaker process;                   // guarded by mutex
  UniqueFd file;                     // guarded by mutex
  std::string status;                // guarded by mutex
  int status_columns = 0;            // guarded by mutex
  std::string complaint;             // an invalid environment variable;
                                     // guarded by mutex, reported once

  State() {
    for (const char* name : {"WEFT_LOG_LEVEL", "TORCH_CPP_LOG_LEVEL"}) {
      const char* value = variable_or_null(name);
      if (value == nullptr) continue;
      if (const auto parsed = parse_log_level(value)) {
        level = *parsed;
        return;
      }
      complaint = std::string(name) + "=" + value +
                  " is not a log level; use debug, info, warn, error or off";
    }
  }
};

// Never destroyed: other statics' destructors may log.
State& state() {
  static State* const kState = new State;
  return *kState;
}

thread_local Speaker thread_speaker{-1, 0};

const char* name_of(LogLevel level) {
  constexpr std::array kNames{"debug", "info", "warn", "error", "off"};
  return kNames[static_cast<std::size_t>(level)];
}

// One write() for each line. A second write() is needed only if the kernel accepted a part.
void write_line(int fd, const std::string& line) {
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t wrote = ::write(fd, line.data() + done, line.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return;
    done += static_cast<std::size_t>(wrote);
  }
}

// A fraction with at most six significant digits. The JSON file has all digits.
std::string short_number(const std::string& json) {
  if (json.find_first_of(".e") == std::string::npos || json.find('"') == 0) return json;
  const auto value = parse_number<double>(json);
  if (!value) return json;
  const std::string text = formatted("%.6g", *value);
  return text.size() < json.size() ? text : json;
}

std::string human_line(LogLevel level, Speaker who, std::string_view message,
                       const std::vector<LogField>& fields) {
  std::string line;
  if (who.world > 1) line += "[rank " + std::to_string(who.rank) + "] ";
  if (level != LogLevel::kInfo)
    line += std::string(level == LogLevel::kWarn ? "warning" : name_of(level)) + ": ";
  line += one_line(message);
  for (const LogField& field : fields)
    line += " " + field.name + "=" + one_line(short_number(field.json));
  return line + "\n";
}

std::string utc_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  const std::time_t seconds = micros / 1'000'000;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &parts);
  return formatted("%s.%06dZ", date, static_cast<int>(micros % 1'000'000));
}

std::string line_of_file(LogLevel level, Speaker who, std::string_view message,
                         const std::vector<LogField>& fields) {
  std::string line;
  JsonWriter(line)
      .begin_object()
      .field("ts", utc_now())
      .field("level", name_of(level))
      .field("rank", who.rank)
      .field("message", message)
      .key("fields")
      .raw(json_of(fields))
      .end_object();
  return line + "\n";
}

// Called with the mutex held.
void emit(State& s, LogLevel level, std::string_view message, const std::vector<LogField>& fields) {
  const Speaker who = thread_speaker.world > 0 ? thread_speaker : s.process;
  if (who.rank == 0 || level >= LogLevel::kWarn || s.level == LogLevel::kDebug) {
    std::string line = human_line(level, who, message, fields);
    if (!s.status.empty())
      line = "\r" + std::string(static_cast<std::size_t>(s.status_columns), ' ') + "\r" + line +
             s.status;
    write_line(STDERR_FILENO, line);
  }
  if (s.file) write_line(s.file.get(), line_of_file(level, who, message, fields));
}

}  // namespace

std::optional<LogLevel> parse_log_level(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr std::pair<const char*, LogLevel> kNames[] = {
      {"debug", LogLevel::kDebug}, {"info", LogLevel::kInfo},    {"0", LogLevel::kInfo},
      {"warn", LogLevel::kWarn},   {"warning", LogLevel::kWarn}, {"1", LogLevel::kWarn},
      {"2", LogLevel::kError},     {"error", LogLevel::kError},  {"fatal", LogLevel::kError},
      {"3", LogLevel::kError},     {"off", LogLevel::kOff},
  };
  for (const auto& [known, level] : kNames) {
    if (lower == known) return level;
  }
  return std::nullopt;
}

void set_log_level(LogLevel level) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.level = level;
}

void log(LogLevel level, std::string_view message, const std::vector<LogField>& fields) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  if (const std::string complaint = std::exchange(s.complaint, {}); !complaint.empty())
    emit(s, LogLevel::kWarn, complaint, {});
  if (level >= s.level && level != LogLevel::kOff) emit(s, level, message, fields);
}

void set_rank(int rank, int world) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.process = {rank, world};
}

ThreadRank::ThreadRank(int rank, int world)
    : rank_(thread_speaker.rank), world_(thread_speaker.world) {
  thread_speaker = {rank, world};
}
ThreadRank::~ThreadRank() { thread_speaker = {rank_, world_}; }

void attach_log_file(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file) fail_io("cannot open the log file", path);
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.file = std::move(file);
}

void detach_log_file() {
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.file.reset();
}

void set_status_line(std::string text, int columns) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.status = std::move(text);
  s.status_columns = std::max(columns, 0);
}

std::string json_of(const std::vector<LogField>& fields) {
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  for (const LogField& field : fields) json.key(field.name).raw(field.json);
  json.end_object();
  return text;
}

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  constexpr std::array kUnits{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1023.95 && unit + 1 < kUnits.size(); ++unit)
    value /= 1024;  // 1023.95 would be printed as 1024.0
  return formatted("%.1f %s", value, kUnits[unit]);
}

std::string format_clock(double seconds) {
  if (!(seconds >= 0 && seconds < 1e9)) return "?";
  const auto whole = static_cast<long long>(seconds);
  return whole < 3600 ? formatted("%02lld:%02lld", whole / 60, whole % 60)
                      : formatted("%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace weft

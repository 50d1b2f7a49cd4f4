#include "weft/observe/run/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>

#include "weft/base/crc32c.h"
#include "weft/base/error.h"
#include "weft/base/log.h"

namespace weft::observe {
namespace {

constexpr std::size_t kFlushBytes = 64 << 10;
constexpr std::chrono::seconds kFlushAfter{2};

// Field numbers of event.proto and summary.proto.
constexpr std::uint32_t kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3,
                        kEventSummary = 5, kEventSessionLog = 7;
constexpr std::uint32_t kSummaryValue = 1, kValueTag = 1, kValueSimpleValue = 2;
constexpr std::uint32_t kSessionStatus = 1, kSessionStart = 1;

// Wire types of protocol buffers.
enum class Wire : std::uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

template <class T>
void put_fixed(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i) & 0xFF);
}

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void put_key(std::string& out, std::uint32_t field, Wire wire) {
  put_varint(out, field << 3 | static_cast<std::uint32_t>(wire));
}

void put_bytes(std::string& out, std::uint32_t field, std::string_view bytes) {
  put_key(out, field, Wire::kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

std::string event_at(double wall_time) {
  std::string event;
  put_key(event, kEventWallTime, Wire::kFixed64);
  put_fixed(event, std::bit_cast<std::uint64_t>(wall_time));
  return event;
}

std::uint32_t masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes.data(), bytes.size());
  return std::rotr(crc, 15) + 0xa282ead8;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string file_name() {
  static std::atomic<int> files{0};
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0')
    host = {'h', 'o', 's', 't'};
  return "events.out.tfevents." + std::to_string(static_cast<std::int64_t>(seconds_now())) + "." +
         host.data() + "." + std::to_string(::getpid()) + "." + std::to_string(files++);
}

RecordFile create_event_file(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644));
  if (!file && errno != ENOSPC && errno != EDQUOT) fail_io("cannot create the event file", path);
  if (!file) log_error("the disk has no room for " + path + "; its records are lost");
  return {std::move(file), path};
}

}  // namespace

std::string tf_record(std::string_view payload) {
  std::string record;
  put_fixed(record, static_cast<std::uint64_t>(payload.size()));
  put_fixed(record, masked_crc(record));
  record += payload;
  put_fixed(record, masked_crc(payload));
  return record;
}

std::string version_event(double wall_time) {
  std::string event = event_at(wall_time);
  put_bytes(event, kEventFileVersion, "brain.Event:2");
  return event;
}

std::string scalar_event(double wall_time, std::int64_t step, const Values& values) {
  std::string summary;
  for (const auto& [tag, number] : values) {
    std::string value;
    put_bytes(value, kValueTag, tag);
    put_key(value, kValueSimpleValue, Wire::kFixed32);
    put_fixed(value, std::bit_cast<std::uint32_t>(static_cast<float>(number)));
    put_bytes(summary, kSummaryValue, value);
  }
  std::string event = event_at(wall_time);
  put_key(event, kEventStep, Wire::kVarint);
  put_varint(event, static_cast<std::uint64_t>(step));
  put_bytes(event, kEventSummary, summary);
  return event;
}

std::string restart_event(double wall_time, std::int64_t step) {
  std::string session;
  put_key(session, kSessionStatus, Wire::kVarint);
  put_varint(session, kSessionStart);
  std::string event = event_at(wall_time);
  put_key(event, kEventStep, Wire::kVarint);
  put_varint(event, static_cast<std::uint64_t>(step));
  put_bytes(event, kEventSessionLog, session);
  return event;
}

EventFile::EventFile(const std::string& folder, std::int64_t first)
    : file_(create_event_file(folder + "/" + file_name())) {
  pending_ = tf_record(version_event(seconds_now()));
  if (first > 0) pending_ += tf_record(restart_event(seconds_now(), first));
  flush();
}

EventFile::~EventFile() { flush(); }

void EventFile::add(std::int64_t step, const Values& values) {
  pending_ += tf_record(scalar_event(seconds_now(), step, values));
  if (pending_.size() >= kFlushBytes || std::chrono::steady_clock::now() - flushed_ >= kFlushAfter)
    flush();
}

void EventFile::flush() {
  flushed_ = std::chrono::steady_clock::now();
  file_.append(std::exchange(pending_, {}));
}

}  // namespace weft::observe

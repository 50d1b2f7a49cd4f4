#include "weft/store/internal/journal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <system_error>

#include "weft/base/crc32c.h"
#include "weft/store/internal/bytes.h"

namespace weft::store::internal {
namespace {

constexpr std::uint64_t kPage = 4096;  // the header is the first one
constexpr std::size_t kSlotBytes = 32;
constexpr std::uint64_t kSlotMagic = 0x6c6e724a54464557;  // "WEFTJrnl"
constexpr std::size_t kRecordHead = 8;
constexpr const char* kName = "the journal of the store";

struct Slot {
  std::uint64_t generation, start;
};

std::string encode_slot(const Slot& slot) {
  ByteWriter out;
  out.put(kSlotMagic);
  out.put(slot.generation);
  out.put(slot.start);
  std::string bytes = out.take();
  ByteWriter whole;
  whole.put(crc32c(bytes.data(), bytes.size()));
  whole.put(std::uint32_t{0});
  return bytes + whole.take();
}

std::optional<Slot> decode_slot(std::string_view bytes) {
  if (bytes.size() < kSlotBytes) return std::nullopt;
  ByteReader in(bytes);
  const auto magic = in.take<std::uint64_t>();
  Slot slot{};
  slot.generation = in.take<std::uint64_t>();
  slot.start = in.take<std::uint64_t>();
  if (magic != kSlotMagic || encode_slot(slot) != bytes.substr(0, kSlotBytes)) return std::nullopt;
  return slot;
}

std::string framed(const std::vector<std::string>& records) {
  ByteWriter out;
  for (const std::string& record : records) {
    out.put(static_cast<std::uint32_t>(record.size()));
    out.put(crc32c(record.data(), record.size()));
    out.put_bytes(record);
  }
  return out.take();
}

}  // namespace

Journal::Journal(UniqueFd fd) : fd_(std::move(fd)) {}

void Journal::write(std::string_view bytes, std::uint64_t at) const {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      throw Error(Errc::kUnavailable, std::string(kName) + " cannot be written: " +
                                          std::system_category().message(errno) +
                                          "; free some memory on this host");
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
    at += static_cast<std::uint64_t>(written);
  }
}

// Shorter at the end of the file.
std::string Journal::read(std::uint64_t at, std::size_t bytes) const {
  std::string got(bytes, '\0');
  std::size_t have = 0;
  while (have < bytes) {
    const ssize_t n =
        ::pread(fd_.get(), got.data() + have, bytes - have, static_cast<off_t>(at + have));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      throw Error(Errc::kUnavailable,
                  std::string(kName) + " cannot be read: " + std::system_category().message(errno));
    }
    if (n == 0) break;
    have += static_cast<std::size_t>(n);
  }
  got.resize(have);
  return got;
}

void Journal::read_header() {
  start_ = end_ = kPage;
  for (const std::uint64_t place : {0, 1}) {
    const auto slot = decode_slot(read(place * kSlotBytes, kSlotBytes));
    if (!slot || slot->generation <= generation_) continue;
    generation_ = slot->generation;
    start_ = end_ = slot->start;
  }
}

void Journal::load(const std::function<void(std::string_view)>& take) {
  read_header();
  struct stat status {};
  ::fstat(fd_.get(), &status);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  const std::string bytes = size > start_ ? read(start_, size - start_) : "";
  std::string_view rest = bytes;
  while (rest.size() >= kRecordHead) {
    ByteReader head(rest);
    const auto length = head.take<std::uint32_t>();
    const auto checksum = head.take<std::uint32_t>();
    if (length == 0 || length > rest.size() - kRecordHead) break;  // 0: never written
    const std::string_view record = rest.substr(kRecordHead, length);
    if (crc32c(record.data(), record.size()) != checksum) break;
    take(record);
    rest.remove_prefix(kRecordHead + length);
  }
  end_ = start_ + bytes.size() - rest.size();
  if (size > end_ && ::ftruncate(fd_.get(), static_cast<off_t>(end_)) != 0)
    throw Error(Errc::kUnavailable,
                std::string(kName) + " cannot be cut: " + std::system_category().message(errno));
}

void Journal::append(const std::vector<std::string>& records) {
  const std::string bytes = framed(records);
  write(bytes, end_);
  end_ += bytes.size();
}

// The zeros of a record's head end the old records: the new ones may be there without their slot.
void Journal::restart(const std::vector<std::string>& records) {
  const std::uint64_t old_start = start_;
  start_ = (end_ + kRecordHead + kPage - 1) / kPage * kPage;
  end_ = start_;
  append(records);
  ++generation_;
  write(encode_slot({generation_, start_}), generation_ % 2 * kSlotBytes);
  // An ordinary file may not support holes. Then the old records only take space.
  ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(old_start),
              static_cast<off_t>(start_ - old_start));
}

}  // namespace weft::store::internal

#include "weft/observe/position/rank_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>
#include <utility>

#include "weft/base/error.h"

namespace weft::observe {
namespace {

constexpr const char* kName = "weft-ranks";
constexpr const char* kLink = "/memfd:weft-ranks";  // in /proc/PID/fd
// "weftpag" and the version of the layout.
constexpr std::uint64_t kMagic = 0x7765667470616703;
constexpr int kMaxRanks = 4096;

std::size_t bytes_for(int ranks) {
  return sizeof(PageHeader) + static_cast<std::size_t>(ranks) * sizeof(RankRecord);
}

// Null if the system refuses.
PageHeader* map_page(int fd, std::size_t bytes, bool writable) {
  void* const at =
      ::mmap(nullptr, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<PageHeader*>(at);
}

[[noreturn]] void unavailable() {
  throw Error(Errc::kUnavailable,
              std::string("no memory for the positions of the ranks: ") + std::strerror(errno));
}

}  // namespace

const char* to_string(Activity activity) {
  switch (activity) {
    case Activity::kUnknown: return "-";
    case Activity::kInit: return "init";
    case Activity::kData: return "data";
    case Activity::kForward: return "forward";
    case Activity::kBackward: return "backward";
    case Activity::kCommunication: return "communication";
    case Activity::kOptimizer: return "optimizer";
    case Activity::kCheckpoint: return "checkpoint";
    case Activity::kEvaluation: return "evaluation";
    case Activity::kRecovery: return "recovery";
    case Activity::kEnd: return "end";
  }
  return "-";
}

std::string ShortName::str() const {
  std::string text;
  for (std::size_t i = 0; i < kLongest; ++i) {
    const char c = static_cast<char>(words_[i / 8] >> 8 * (i % 8));
    if (c == '\0') break;
    text += c;
  }
  return text;
}

std::uint64_t RankRecord::heartbeat() const {
  std::uint64_t sum = standing.writes();
  for (const OperationSlot& slot : slots) sum += slot.operation.writes();
  return sum;
}

RankPage RankPage::make(int ranks, int first_rank, int world, int most) {
  most = std::max(ranks, most);
  WEFT_REQUIRE(ranks >= 1 && most <= kMaxRanks,
               "a page has 1 to " + std::to_string(kMaxRanks) + " ranks");
  UniqueFd fd(::memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const std::size_t bytes = bytes_for(most);
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) unavailable();
  // A process that maps it never finds it shorter than it was.
  ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  PageHeader* const header = map_page(fd.get(), bytes, true);
  if (header == nullptr) unavailable();
  header->ranks = ranks;
  header->elsewhere = std::max(0, world - ranks);
  header->magic = kMagic;
  RankPage page(std::move(fd), header, bytes);
  for (int local = 0; local < most; ++local)
    page.clear(local, first_rank < 0 ? -1 : first_rank + local);
  return page;
}

void RankPage::set_ranks(int ranks) const {
  WEFT_REQUIRE(ranks >= 1 && bytes_for(ranks) <= bytes_, "the page has no room for so many ranks");
  header_->ranks = ranks;
}

std::optional<RankPage> RankPage::map(UniqueFd fd, bool writable) {
  struct stat file {};
  std::uint64_t magic = 0;
  const int needed = F_SEAL_SHRINK | F_SEAL_GROW;
  if (!fd || ::fstat(fd.get(), &file) != 0 || !S_ISREG(file.st_mode) ||
      (::fcntl(fd.get(), F_GET_SEALS) & needed) != needed ||
      file.st_size < static_cast<off_t>(bytes_for(1)) ||
      ::pread(fd.get(), &magic, sizeof magic, 0) != sizeof magic || magic != kMagic)
    return std::nullopt;
  const auto bytes = static_cast<std::size_t>(file.st_size);
  PageHeader* const header = map_page(fd.get(), bytes, writable);
  if (header == nullptr) return std::nullopt;
  RankPage page(std::move(fd), header, bytes);
  if (header->ranks < 1 || header->ranks > kMaxRanks || bytes < bytes_for(header->ranks))
    return std::nullopt;
  return page;
}

std::optional<RankPage> RankPage::of_process(pid_t pid) {
  std::error_code failed;
  const std::filesystem::path folder = "/proc/" + std::to_string(pid) + "/fd";
  for (std::filesystem::directory_iterator at(folder, failed), end; !failed && at != end;
       at.increment(failed)) {
    std::error_code ignored;
    const std::string target = std::filesystem::read_symlink(at->path(), ignored).string();
    if (!target.starts_with(kLink)) continue;
    auto page = map(UniqueFd(::open(at->path().c_str(), O_RDONLY | O_CLOEXEC)), false);
    if (page) return page;
  }
  return std::nullopt;
}

RankPage::RankPage(RankPage&& other) noexcept
    : fd_(std::move(other.fd_)),
      header_(std::exchange(other.header_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

RankPage& RankPage::operator=(RankPage&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(header_, other.header_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

RankPage::~RankPage() {
  if (header_ != nullptr) ::munmap(header_, bytes_);
}

void RankPage::clear(int local, int rank) const {
  auto* const emptied = new (&record(local)) RankRecord();
  emptied->standing.write({.rank = rank});
}

std::string RankPage::run_folder() const {
  const std::size_t length = header_->run_folder_length.load(std::memory_order_acquire);
  return {header_->run_folder, std::min(length, sizeof header_->run_folder)};
}

void RankPage::set_run_folder(const std::string& path) const {
  if (path.size() > sizeof header_->run_folder) return;
  header_->run_folder_length.store(0, std::memory_order_release);
  std::memcpy(header_->run_folder, path.data(), path.size());
  header_->run_folder_length.store(static_cast<std::uint32_t>(path.size()),
                                   std::memory_order_release);
}

}  // namespace weft::observe

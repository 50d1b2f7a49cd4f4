// Where each rank of a node is: a page of shared memory between the launcher and its ranks.
//
//   launcher: RankPage::make() ── descriptor, WEFT_PAGE_FD ─► rank: position.h writes its record
//      │ reads the records; writes requests into the header   (without a launcher: into its own)
//      ▼
//   weft status, from another process: RankPage::of_process(pid)
//
// The page is anonymous (memfd) and ends with its processes. A record can be read at any time, also
// that of a rank that is stopped or dead.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "weft/base/file.h"
#include "weft/observe/position/published.h"

namespace weft::observe {

// What a rank does, as the loop that drives it says.
enum class Activity : std::int32_t {
  kUnknown,  // The program does not say.
  kInit,     // Start-up, up to the first step.
  kData,
  kForward,
  kBackward,
  kCommunication,
  kOptimizer,
  kCheckpoint,
  kEvaluation,
  kRecovery,  // A rank was lost, and the ranks form their group again.
  kEnd,       // The last barrier, reports, destructors.
};
// "data", "forward" …; "-" for kUnknown.
const char* to_string(Activity activity);

// A short name in shared memory. Longer ones are cut.
class ShortName {
 public:
  static constexpr std::size_t kLongest = 16;

  constexpr ShortName() = default;
  constexpr ShortName(std::string_view name) {  // NOLINT(google-explicit-constructor)
    for (std::size_t i = 0; i < name.size() && i < kLongest; ++i)
      words_[i / 8] |= std::uint64_t{static_cast<unsigned char>(name[i])} << 8 * (i % 8);
  }
  constexpr ShortName(const char* name) : ShortName(std::string_view(name)) {}  // NOLINT
  std::string str() const;
  constexpr bool empty() const { return words_[0] == 0; }

 private:
  std::uint64_t words_[2] = {};
};

// The operation that a thread of a rank is in, or its last one. Without a name: there was none. Its
// fields are whole words, so that a write does not wait for stores of parts of them.
struct Operation {
  static constexpr std::int64_t kOver = -1;

  ShortName name;            // "all_reduce"
  ShortName group;           // "world", "tp"; empty if unknown
  std::uint64_t number = 0;  // Sequence number in its group, from 1. 0: it has none.
  std::uint64_t bytes = 0;
  // CLOCK_MONOTONIC, nanoseconds. Since then the rank waits for a peer. 0: it does not wait. kOver:
  // the operation has ended.
  std::int64_t waits_since = 0;
  std::int64_t peer = -1;  // Rank of the job that it waits for. -1: none, or unknown.

  bool runs() const { return !name.empty() && waits_since != kOver; }
  bool waits() const { return waits_since > 0; }
};

// The state of a rank outside of its operations.
struct Standing {
  std::int64_t step = 0;   // Training step that runs, from 1. 0: none.
  std::int64_t since = 0;  // CLOCK_MONOTONIC, nanoseconds: when the activity began.
  Activity activity = Activity::kUnknown;
  std::int32_t rank = -1;   // Rank of the job. -1: not known yet.
  std::int32_t pid = 0;     // 0: no process writes the record.
  std::int32_t thread = 0;  // Id of the thread that drives the steps.
};

// One thread's part of a record.
struct alignas(64) OperationSlot {
  std::atomic<std::int32_t> thread;  // Id of the thread that writes it. 0: none.
  Published<Operation> operation;
};

struct alignas(64) RankRecord {
  static constexpr int kSlots = 8;  // Threads of a rank that are in an operation at once.

  Published<Standing> standing;
  OperationSlot slots[kSlots];
  // 1: the rank asks for a new process in its place, because it is slow.
  std::atomic<std::uint32_t> wants_replacement;

  // Grows whenever the rank changes its record.
  std::uint64_t heartbeat() const;
};

// What the launcher asks of its ranks, and what they tell it. Every field may be read at any time.
struct alignas(64) PageHeader {
  // Bits of `requests`.
  static constexpr std::uint32_t kCheckpoint = 1, kStop = 2, kDump = 4;

  std::uint64_t magic;
  std::atomic<std::int32_t> ranks;      // Number of records in use.
  std::atomic<std::int32_t> elsewhere;  // Ranks of the job on other nodes.
  std::int32_t launcher;                // Process id of the launcher. 0: none.
  // Number of ranks that the job shall have. 0: no change is wanted.
  std::atomic<std::int32_t> wanted_ranks;
  std::atomic<std::uint32_t> requests;
  // Grows with each change that the launcher makes: a request, a new process of a rank.
  std::atomic<std::uint32_t> generation;
  // Length of run_folder. Rank 0 writes the text first.
  std::atomic<std::uint32_t> run_folder_length;
  char run_folder[960];
};

class RankPage {
 public:
  // A page for `ranks` ranks of a job of `world`, with room for `most` ranks (0: for `ranks`). The
  // first one has number `first_rank` in the job; -1: their numbers are not known yet. The
  // descriptor is closed on exec. Throws Error(kUnavailable) if the system has no memory for it.
  static RankPage make(int ranks, int first_rank, int world, int most = 0);
  // Changes the number of records in use.
  void set_ranks(int ranks) const;
  // Maps the page behind a descriptor, which this takes. nullopt if it is not a page of this
  // version of weft.
  static std::optional<RankPage> map(UniqueFd fd, bool writable);
  // Maps, for reading, the page that another process holds: a launcher or a rank. nullopt if it
  // holds none, has ended, or belongs to another user.
  static std::optional<RankPage> of_process(pid_t pid);

  RankPage(RankPage&& other) noexcept;
  RankPage& operator=(RankPage&& other) noexcept;
  ~RankPage();

  int fd() const { return fd_.get(); }
  PageHeader& header() const { return *header_; }
  int ranks() const { return header_->ranks; }
  RankRecord& record(int local) const { return records()[local]; }
  // Empties a record, when a new process takes this rank of the job.
  void clear(int local, int rank) const;
  // The run folder that rank 0 has named. Empty: none yet.
  std::string run_folder() const;
  // Names it. A path that is too long is left out.
  void set_run_folder(const std::string& path) const;

 private:
  RankPage(UniqueFd fd, PageHeader* header, std::size_t bytes)
      : fd_(std::move(fd)), header_(header), bytes_(bytes) {}
  RankRecord* records() const { return reinterpret_cast<RankRecord*>(header_ + 1); }

  UniqueFd fd_;
  PageHeader* header_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace weft::observe

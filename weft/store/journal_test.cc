#include "weft/store/internal/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "weft/base/testing/refusal.h"
#include "weft/store/internal/records.h"

namespace weft::store {
namespace journal_test {

using internal::Journal;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A file of a journal, which outlives it.
class File {
 public:
  File() : fd_(::memfd_create("journal", MFD_CLOEXEC)) {}
  UniqueFd open() const { return UniqueFd(::dup(fd_.get())); }
  std::string bytes() const {
    std::string all(static_cast<std::size_t>(::lseek(fd_.get(), 0, SEEK_END)), '\0');
    EXPECT_EQ(::pread(fd_.get(), all.data(), all.size(), 0), static_cast<ssize_t>(all.size()));
    return all;
  }
  void replace(const std::string& bytes) const {
    EXPECT_EQ(::ftruncate(fd_.get(), 0), 0);
    EXPECT_EQ(::pwrite(fd_.get(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
  }
  std::size_t blocks_bytes() const {
    struct stat status {};
    ::fstat(fd_.get(), &status);
    return static_cast<std::size_t>(status.st_blocks) * 512;
  }

 private:
  UniqueFd fd_;
};

std::vector<std::string> load(Journal& journal) {
  std::vector<std::string> records;
  journal.load([&](std::string_view record) { records.emplace_back(record); });
  return records;
}

std::vector<std::string> load(const File& file) {
  Journal journal(file.open());
  return load(journal);
}

TEST(StoreJournal, GivesItsRecordsToTheNextProcess) {
  const File file;
  {
    Journal journal(file.open());
    EXPECT_THAT(load(journal), IsEmpty());
    journal.append({"one", "two"});
    journal.append({std::string(100'000, 'x')});
  }
  Journal next(file.open());
  EXPECT_THAT(load(next), ElementsAre("one", "two", std::string(100'000, 'x')));
  next.append({"four"});
  EXPECT_THAT(load(file), ElementsAre("one", "two", std::string(100'000, 'x'), "four"));
}

// A process that is killed while it writes leaves any first part of the bytes.
TEST(StoreJournal, KeepsEarlierRecordsWhenTheLastOneIsTornAtAnyByte) {
  const File file;
  Journal journal(file.open());
  load(journal);
  journal.append({"one", "two"});
  const std::string before = file.bytes();
  journal.append({"three"});
  const std::string after = file.bytes();
  for (std::size_t size = before.size(); size < after.size(); ++size) {
    file.replace(after.substr(0, size));
    Journal next(file.open());
    EXPECT_THAT(load(next), ElementsAre("one", "two")) << size;
    next.append({"other"});
    EXPECT_THAT(load(file), ElementsAre("one", "two", "other")) << size;
  }
}

TEST(StoreJournal, HoldsTheOldRecordsOrTheNewOnesWhenARestartIsTorn) {
  const File file;
  Journal journal(file.open());
  load(journal);
  journal.append({"one", "two"});
  journal.restart({"three"});
  journal.append({"four"});
  const std::string before = file.bytes();
  journal.restart({"five", "six"});
  const std::string after = file.bytes();
  EXPECT_THAT(load(file), ElementsAre("five", "six"));
  // The records are written first, then the header.
  for (std::size_t size = before.size(); size <= after.size(); size += 7) {
    file.replace(before + after.substr(before.size(), size - before.size()));
    EXPECT_THAT(load(file), ElementsAre("three", "four")) << size;
  }
  for (std::size_t size = 0; size <= 64; ++size) {
    file.replace(after.substr(0, size) + before.substr(size, before.size() - size) +
                 after.substr(before.size()));
    const auto records = load(file);
    EXPECT_TRUE(records == (std::vector<std::string>{"three", "four"}) ||
                records == (std::vector<std::string>{"five", "six"}))
        << size;
  }
}

// The old records end at the end of a page.
TEST(StoreJournal, HoldsTheOldRecordsAloneWhenARestartIsTornBehindAFullPage) {
  for (const std::size_t spare : {0u, 1u, 7u, 8u}) {  // bytes that the page has left
    const File file;
    Journal journal(file.open());
    load(journal);
    const std::string old(4096 - 8 - spare, 'x');
    journal.append({old});
    const std::string before = file.bytes();
    journal.restart({"five", "six"});
    const std::string after = file.bytes();
    file.replace(before + after.substr(before.size()));  // killed before it wrote the header
    EXPECT_THAT(load(file), ElementsAre(old)) << spare;
  }
}

TEST(StoreJournal, GivesBackTheMemoryOfReplacedRecords) {
  const File file;
  Journal journal(file.open());
  load(journal);
  for (int i = 0; i < 20; ++i) {
    journal.append({std::string(1 << 20, 'x')});
    journal.restart({"small"});
  }
  EXPECT_LT(file.blocks_bytes(), 3u << 20);
  EXPECT_THAT(load(file), ElementsAre("small"));
}

TEST(StoreRecords, GiveBackWhatAMemberMustNotForget) {
  using namespace internal;
  Configuration configuration;
  configuration.members = {{1, 0, 9, "a:1"}};
  configuration.voters = {1};
  configuration.next_id = 2;
  Log log({5, 2, configuration, "state"});
  log.append({3, LogEntry::Kind::kCommand, "one"});
  log.append({3, LogEntry::Kind::kNothing, ""});
  Saved saved;
  replay(identity_record({7, 1, 9, 5}), saved);
  replay(vote_record({3, 1}), saved);
  replay(snapshot_record(log.snapshot()), saved);
  replay(entries_record(log, 6), saved);
  EXPECT_EQ(saved.identity, (Identity{7, 1, 9, 5}));
  EXPECT_EQ(saved.vote, (Vote{3, 1}));
  EXPECT_EQ(saved.log.last(), 7u);
  EXPECT_EQ(saved.log.snapshot().state, "state");
  EXPECT_EQ(saved.log.configuration(), configuration);
  // Entries that replace others.
  Log other({5, 2, configuration, "state"});
  other.append({4, LogEntry::Kind::kCommand, "other"});
  replay(entries_record(other, 6), saved);
  EXPECT_EQ(saved.log.last(), 6u);
  EXPECT_EQ(saved.log.at(6).data, "other");
  expect_refused([&] { replay(std::string(1, '\x09'), saved); }, Errc::kCorrupt, "malformed");
}

}  // namespace journal_test
}  // namespace weft::store

#include "weft/base/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "weft/base/error.h"
#include "weft/base/testing/file_faults.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

template <class Code>
void expect_error(Errc code, const std::string& part, Code run) {
  try {
    run();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_THAT(error.message(), HasSubstr(part));
  }
}

std::size_t entries(const std::string& folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

TEST(File, AtomicWriteReplacesTheWholeFileAndLeavesNoTemporaryFile) {
  const TempDir folder;
  write_file_atomic(folder / "a", std::string(100000, 'x'));
  write_file_atomic(folder / "a", std::string("short\0er", 8));
  EXPECT_EQ(read_file(folder / "a", 8), std::string("short\0er", 8));
  EXPECT_EQ(entries(folder.path()), 1u);
}

TEST(File, AFailedAtomicWriteKeepsTheOldContentAndLeavesNoTemporaryFile) {
  const TempDir folder;
  std::filesystem::create_directory(folder / "taken");
  expect_error(Errc::kInvalidArgument, "taken: Is a directory",
               [&] { write_file_atomic(folder / "taken", "x"); });
  EXPECT_EQ(entries(folder.path()), 1u);
  expect_error(Errc::kInvalidArgument, "none/x: No such file",
               [&] { write_file_atomic(folder / "none/x", "x"); });
}

TEST(File, AnAtomicWriteDoesNotReplaceADeviceOrAPipe) {
  const TempDir folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/null", folder / "link");
  for (const char* name : {"pipe", "link"}) {
    expect_error(Errc::kInvalidArgument, std::string(name) + " is a device or a pipe",
                 [&] { write_file_atomic(folder / name, "x"); });
  }
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "pipe"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(entries(folder.path()), 2u);
}

TEST(File, AFullDiskIsUnavailable) {
  const UniqueFd full(::open("/dev/full", O_WRONLY));
  ASSERT_TRUE(full);
  expect_error(Errc::kUnavailable, "/dev/full: No space left",
               [&] { write_all(full.get(), "x", "/dev/full"); });
}

TEST(File, ReadingStopsAtTheLimitAndNamesAMissingPath) {
  const TempDir folder;
  write_file_atomic(folder / "a", "12345");
  EXPECT_EQ(read_file(folder / "a", 5), "12345");
  expect_error(Errc::kCorrupt, "larger than the 4 bytes", [&] { read_file(folder / "a", 4); });
  expect_error(Errc::kCorrupt, "/dev/zero", [] { read_file("/dev/zero", 1000); });
  expect_error(Errc::kInvalidArgument, "missing: No such file",
               [&] { read_file(folder / "missing", 4); });
  expect_error(Errc::kInvalidArgument, "Is a directory", [&] { read_file(folder.path(), 4); });
}

TEST(File, MakesFoldersAndNamesAFileInTheWay) {
  const TempDir folder;
  make_directories(folder / "a/b/c");
  make_directories(folder / "a/b/c");
  EXPECT_TRUE(std::filesystem::is_directory(folder / "a/b/c"));
  write_file_atomic(folder / "file", "");
  expect_error(Errc::kInvalidArgument, "file/x: Not a directory",
               [&] { make_directories(folder / "file/x"); });
}

// As on vboxsf and 9p.
TEST(File, IsWrittenWithOneWarningWhereFoldersCannotBeFlushed) {
  const TempDir folder;
  testing::internal::CaptureStderr();
  for (const int error_number : {EINVAL, ENOTSUP}) {
    const FileFaults faults([&](FileCall call, const std::string& path) {
      return call == FileCall::kFlush && std::filesystem::is_directory(path) ? error_number : 0;
    });
    const std::string path = folder / std::to_string(error_number);
    make_directories(path + "/a");
    write_file_atomic(path + "/a/b", "x");
    EXPECT_EQ(read_file(path + "/a/b", 1), "x");
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("cannot flush the folder " + folder.path() + ": Invalid argument"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
}

TEST(File, AnAtomicWriteFailsIfTheDiskFailsToFlushTheFolder) {
  const TempDir folder;
  expect_error(Errc::kInvalidArgument, "none: No such file",
               [&] { flush_directory(folder / "none"); });
  const FileFaults faults([&](FileCall call, const std::string& path) {
    return call == FileCall::kFlush && path == folder.path() ? EIO : 0;
  });
  expect_error(Errc::kUnavailable, "cannot flush the folder " + folder.path(),
               [&] { write_file_atomic(folder / "a", "x"); });
}

TEST(File, DescriptorsCloseOnceAndMove) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  UniqueFd read_end(ends[0]);
  {
    UniqueFd write_end(ends[1]);
    UniqueFd moved(std::move(write_end));
    EXPECT_FALSE(write_end);  // NOLINT(bugprone-use-after-move): a moved-from
                              // descriptor must be empty
    EXPECT_EQ(moved.get(), ends[1]);
  }
  char byte;
  EXPECT_EQ(::read(read_end.get(), &byte, 1), 0);  // the write end is closed
  UniqueFd& same = read_end;
  read_end = std::move(same);
  EXPECT_TRUE(read_end);
  EXPECT_EQ(::fcntl(read_end.get(), F_GETFD) >= 0, true);
}

TEST(File, TemporaryFoldersAreRemovedWithTheirContent) {
  std::string path;
  {
    const TempDir folder;
    path = folder.path();
    make_directories(folder / "a/b");
    write_file_atomic(folder / "a/b/c", "x");
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace weft

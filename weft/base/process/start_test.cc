#include "weft/base/process/start.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <functional>

#include "weft/base/error.h"
#include "weft/base/file.h"

namespace weft {
namespace {

// The end of a copy of this process that runs `check`: 0 if it is true.
int end_of_child(const std::function<bool()>& check) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(check() ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

bool is_dev_null(int fd) {
  struct stat file {
  }, null{};
  return ::fstat(fd, &file) == 0 && ::stat("/dev/null", &null) == 0 &&
         file.st_rdev == null.st_rdev && S_ISCHR(file.st_mode);
}

TEST(StandardDescriptors, AreOpenedIfTheyAreClosed) {
  EXPECT_EQ(end_of_child([] {
              ::close(0);
              ::close(2);
              open_standard_descriptors();
              return is_dev_null(0) && is_dev_null(2) && ::open("/dev/null", O_RDONLY) > 2;
            }),
            0);
}

TEST(StandardDescriptors, StayAsTheyAreIfTheyAreOpen) {
  EXPECT_EQ(end_of_child([] {
              const TempDir folder;
              ::close(1);
              const int file = ::open((folder / "out").c_str(), O_CREAT | O_WRONLY, 0600);
              open_standard_descriptors();
              return file == 1 && !is_dev_null(1);
            }),
            0);
}

TEST(FileSizeLimit, IsAnErrorOfTheWrite) {
  EXPECT_EQ(end_of_child([] {
              const TempDir folder;
              const std::string path = folder / "file";
              ignore_file_size_signal();
              const rlimit limit{100, 100};
              ::setrlimit(RLIMIT_FSIZE, &limit);
              try {
                const UniqueFd file = create_file(path);
                write_all(file.get(), std::string(1000, 'x'), path);
              } catch (const Error& error) {
                return error.code() == Errc::kUnavailable &&
                       error.message() == "cannot write " + path + ": File too large";
              }
              return false;
            }),
            0);
}

TEST(FileSizeLimit, LeavesAHandlerOfTheProgram) {
  EXPECT_EQ(end_of_child([] {
              ::signal(SIGXFSZ, [](int) { ::_exit(0); });
              ignore_file_size_signal();
              ::raise(SIGXFSZ);
              return false;
            }),
            0);
}

class TemporaryFolder : public ::testing::Test {
 protected:
  ~TemporaryFolder() override { ::setenv("TMPDIR", before_.c_str(), 1); }
  static std::string refusal() {
    try {
      return "no error: " + temporary_folder();
    } catch (const Error& error) {
      return error.what();
    }
  }

 private:
  const std::string before_ = std::getenv("TMPDIR") != nullptr ? std::getenv("TMPDIR") : "";
};

TEST_F(TemporaryFolder, IsTMPDIROrTmp) {
  const TempDir folder;
  ::setenv("TMPDIR", folder.path().c_str(), 1);
  EXPECT_EQ(temporary_folder(), folder.path());
  ::setenv("TMPDIR", "", 1);
  EXPECT_EQ(temporary_folder(), "/tmp");
}

TEST_F(TemporaryFolder, IsRefusedIfItIsNoFolder) {
  ::setenv("TMPDIR", "/nonexistent", 1);
  EXPECT_EQ(refusal(),
            "BadConfig: no temporary files can be made in /nonexistent: No such file or directory; "
            "set TMPDIR to a folder that this user can write to");
  ::setenv("TMPDIR", "/dev/null", 1);
  EXPECT_NE(refusal().find("/dev/null: Not a directory"), std::string::npos);
}

}  // namespace
}  // namespace weft

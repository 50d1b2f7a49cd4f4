#include "weft/base/json/error_file.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <new>
#include <stdexcept>

#include "weft/base/file.h"

namespace {
bool no_memory = false;
}  // namespace

// Not inlined, or g++ takes free() for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  void* const memory = no_memory ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace weft {
namespace {

class ErrorFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "weft_error_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    file_ = folder_ / "error.json";
    ::setenv("TORCHELASTIC_ERROR_FILE", file_.c_str(), 1);
  }
  void TearDown() override {
    forget_failure();
    ::unsetenv("TORCHELASTIC_ERROR_FILE");
    ::unsetenv("WEFT_LAUNCHER_REPORTS");
    std::filesystem::remove_all(folder_);
  }
  void write(const std::string& text) { std::ofstream(file_) << text; }

  std::filesystem::path folder_, file_;
};

TEST_F(ErrorFile, KeepsTheCodeAndThePeerOfAnError) {
  EXPECT_FALSE(write_error_file(Error(Errc::kTimeout, "rank 5 is late", {"all_reduce", 4, 5})));
  const auto cause = read_error_file(file_);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->message, "Timeout{5}: all_reduce, rank 4: rank 5 is late");
  EXPECT_EQ(cause->code, Errc::kTimeout);
  EXPECT_EQ(cause->peer, 5);
}

TEST_F(ErrorFile, SaysWhetherTheLauncherReports) {
  ::setenv("WEFT_LAUNCHER_REPORTS", "1", 1);
  EXPECT_TRUE(write_error_file("no data"));
  const auto cause = read_error_file(file_);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->message, "no data");
  EXPECT_FALSE(cause->code);
  EXPECT_EQ(cause->peer, -1);
  ::unsetenv("TORCHELASTIC_ERROR_FILE");
  EXPECT_FALSE(write_error_file("no data"));
}

TEST_F(ErrorFile, IsWrittenIfMemoryHasRunOut) {
  const Error error(Errc::kPeerLost, "rank \"5\" \\ is lost, \xc3\xa4 \xff", {"init", 4, 5});
  no_memory = true;
  record_failure(error);
  no_memory = false;
  const auto cause = read_error_file(file_);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->message, "PeerLost{5}: init, rank 4: rank \"5\" \\ is lost, \xc3\xa4 ?");
  EXPECT_EQ(cause->peer, 5);
  forget_failure();
  no_memory = true;
  const int code = fail_with(std::bad_alloc());
  no_memory = false;
  EXPECT_EQ(code, exit_code(Errc::kUnavailable));
  ASSERT_TRUE(read_error_file(file_));
  EXPECT_EQ(read_error_file(file_)->message.find("Unavailable: out of memory"), 0u);
}

TEST_F(ErrorFile, KeepsTheBeginningOfALongMessage) {
  write_error_file(std::string(100'000, '\x01'));
  ASSERT_TRUE(read_error_file(file_));
  EXPECT_GT(read_error_file(file_)->message.size(), 1000u);
}

// How a process ends in which nobody catches the exception: its exit code, or 128 + the signal.
int end_by(const std::function<void()>& thrower) {
  const pid_t child = ::fork();
  if (child == 0) {
    const UniqueFd nothing(::open("/dev/null", O_WRONLY));
    ::dup2(nothing.get(), 2);
    report_exhaustion_on_terminate();
    [&]() noexcept { thrower(); }();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST_F(ErrorFile, NamesAnExhaustionThatNobodyCatches) {
  EXPECT_EQ(end_by([] { throw std::bad_alloc(); }), exit_code(Errc::kUnavailable));
  ASSERT_TRUE(read_error_file(file_));
  EXPECT_EQ(read_error_file(file_)->message.find("Unavailable: out of memory"), 0u);
  EXPECT_EQ(end_by([] { throw std::logic_error("a bug"); }), 128 + SIGABRT);
}

TEST_F(ErrorFile, RecordsTheFailureThatTellsMost) {
  record_failure(Error(Errc::kAborted, "rank 1 failed", {"all_reduce", 0, 1}));
  EXPECT_EQ(read_error_file(file_)->code, Errc::kAborted);
  record_failure(Error(Errc::kPeerLost, "rank 2 is lost", {"all_reduce", 0, 2}));
  record_failure(Error(Errc::kAborted, "rank 3 failed", {"all_reduce", 0, 3}));
  EXPECT_EQ(read_error_file(file_)->code, Errc::kPeerLost);
  EXPECT_EQ(read_error_file(file_)->peer, 2);
  forget_failure();
  EXPECT_FALSE(std::filesystem::exists(file_));
  record_failure(Error(Errc::kAborted, "rank 3 failed", {"all_reduce", 0, 3}));
  EXPECT_EQ(read_error_file(file_)->peer, 3);
}

TEST_F(ErrorFile, ReadsTheLastLineOfATraceback) {
  write(R"({"message": {"message": "Traceback\n  f()\nValueError: no\n\n",
            "extraInfo": {"py_callstack": "…", "timestamp": "1"}}})");
  ASSERT_TRUE(read_error_file(file_));
  EXPECT_EQ(read_error_file(file_)->message, "ValueError: no");
  write(R"({"message": "plain"})");
  EXPECT_EQ(read_error_file(file_)->message, "plain");
}

TEST_F(ErrorFile, IsNothingInAnotherFormat) {
  EXPECT_FALSE(read_error_file(file_));
  for (const char* text : {"", "{", "[]", "{}", R"({"message": 1})", R"({"message": ""})",
                           R"({"message": {"message": []}})"}) {
    write(text);
    EXPECT_FALSE(read_error_file(file_)) << text;
  }
  // Details of another format are left out.
  for (const char* extra : {"1", "[]", R"({"weft": 1})", R"({"weft": {"code": 1, "peer": "x"}})",
                            R"({"weft": {"code": "Unknown"}})"}) {
    write(std::string(R"({"message": {"message": "m", "extraInfo": )") + extra + "}}");
    const auto cause = read_error_file(file_);
    ASSERT_TRUE(cause) << extra;
    EXPECT_FALSE(cause->code) << extra;
    EXPECT_EQ(cause->peer, -1) << extra;
  }
}

}  // namespace
}  // namespace weft

// Files, so that each is either complete or absent, and an owner for file descriptors. What fails throws Error naming the path and the
// system's reason: kInvalidArgument where the path is wrong or not permitted, kUnavailable where the machine has run out of something or
// failed.
#pragma once

#include <cerrno>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace weft {

// Owns a file descriptor; -1 is none.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // Gives the descriptor up to the caller.
  int release() { return std::exchange(fd_, -1); }
  // Closes what is held; errno is left as it was.
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

// Throws Error "<what> <path>: <reason of the error number>".
[[noreturn]] void fail_io(const std::string& what, const std::string& path, int error_number = errno);

// Writes all bytes to a descriptor, over short writes and signals; `path` is for the message.
void write_all(int fd, std::string_view bytes, const std::string& path);

// The whole file. Throws kCorrupt when it holds more than max_bytes, without reading further.
std::string read_file(const std::string& path, std::size_t max_bytes);

// Replaces `path` by these bytes so that a reader, or the next start after a crash, finds the old file or the new one and never a part:
// written aside in the same folder, flushed, renamed, the folder flushed. On failure the old file stays and nothing is left behind.
void write_file_atomic(const std::string& path, std::string_view bytes);

// Makes the folder and those above it; one that exists is fine.
void make_directories(const std::string& path);

// A fresh folder below TMPDIR (or /tmp), removed with all that is in it when this goes.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

}  // namespace weft

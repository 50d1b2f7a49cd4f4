// Files, so that each is either complete or absent, and an owner for file descriptors. What fails
// throws Error naming the path and the system's reason: kInvalidArgument where the path is wrong or
// not permitted, kUnavailable where the machine has run out of something or failed.
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

// A call that changes files. Tests record the calls, make one of them fail, or end the process
// there (set_file_fault).
enum class FileCall { kCreate, kWrite, kFlush, kRename, kExchange, kRemove, kMakeFolder, kLock };
struct FileEvent {
  FileCall call;
  const std::string& path;      // Of a rename: the new name.
  const std::string& from;      // The old name, or the name to exchange with; empty otherwise.
  std::string_view bytes = {};  // Bytes to write.
};
// Gives the error number that the call fails with, 0: the call is made. Called by any thread.
using FileFault = int (*)(const FileEvent& event);
// For tests: every later call asks `fault` first. Null: none is asked. Returns the one before.
FileFault set_file_fault(FileFault fault);

// Throws Error "<what> <path>: <reason of the error number>".
[[noreturn]] void fail_io(const std::string& what, const std::string& path,
                          int error_number = errno);

// Writes all bytes to a descriptor, over short writes and signals; `path` is for the message.
void write_all(int fd, std::string_view bytes, const std::string& path);

// Makes a new file for writing. One that exists is an error.
UniqueFd create_file(const std::string& path);

// Locks an open file until the descriptor is closed, also by the death of the process (flock).
// False: another descriptor has locked it. Throws Error where the file system has no locks.
bool lock_file(int fd, const std::string& path);

// Returns when the file's bytes are on the disk.
void flush_file(int fd, const std::string& path);

// Makes the names in a folder survive a power cut. Warns once where the file system cannot flush
// folders (vboxsf, 9p).
void flush_directory(const std::string& path);

// Makes one folder. One that exists is an error.
void make_directory(const std::string& path);

// Renames a file or a folder, at one instant. A file called `to` is replaced; a folder called `to`
// must be empty.
void rename_path(const std::string& from, const std::string& to);

// Exchanges two names at one instant. False: the file system cannot, and nothing has changed.
bool exchange_paths(const std::string& path, const std::string& other);

// Removes a file or a folder with all that is in it. Ignores what cannot be removed.
void remove_tree(const std::string& path) noexcept;

// The folder that a path is in; "." for a bare name.
std::string parent_of(const std::string& path);

// The whole file. Throws kCorrupt when it holds more than max_bytes, without reading further.
std::string read_file(const std::string& path, std::size_t max_bytes);

// Replaces `path` by these bytes so that a reader, or the next start after a crash, finds the old
// file or the new one and never a part: written aside in the same folder, flushed, renamed, the
// folder flushed. On failure the old file stays and nothing is left behind.
void write_file_atomic(const std::string& path, std::string_view bytes);

// Makes the folder and those above it; one that exists is fine. The names of new ones survive a
// power cut.
void make_directories(const std::string& path);

// A fresh folder below `parent`, removed with all that is in it when this goes. Without a parent:
// below TMPDIR, or /tmp.
class TempDir {
 public:
  explicit TempDir(const std::string& parent = "");
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

}  // namespace weft

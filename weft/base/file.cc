#include "weft/base/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>

#include "weft/base/error.h"
#include "weft/base/internal/describe.h"
#include "weft/base/log.h"
#include "weft/base/text/variables.h"

namespace weft {
namespace {

std::atomic<FileFault> file_fault{nullptr};

const std::string kNone;

// The error number that a test wants for this call; 0: none.
int fault_of(const FileEvent& event) {
  const FileFault fault = file_fault.load(std::memory_order_acquire);
  return fault == nullptr ? 0 : fault(event);
}

void ask_fault(const FileEvent& event, const char* what) {
  if (const int error_number = fault_of(event); error_number != 0)
    fail_io(what, event.path, error_number);
}

}  // namespace

FileFault set_file_fault(FileFault fault) {
  return file_fault.exchange(fault, std::memory_order_acq_rel);
}

UniqueFd create_file(const std::string& path) {
  ask_fault({FileCall::kCreate, path, kNone}, "cannot create");
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd) fail_io("cannot create", path);
  return fd;
}

bool lock_file(int fd, const std::string& path) {
  int why = fault_of({FileCall::kLock, path, kNone});
  if (why == 0) {
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
    why = errno;
  }
  if (why != EWOULDBLOCK) fail_io("cannot lock", path, why);
  return false;
}

void flush_file(int fd, const std::string& path) {
  ask_fault({FileCall::kFlush, path, kNone}, "cannot flush");
  if (::fsync(fd) != 0) fail_io("cannot flush", path);
}

void flush_directory(const std::string& path) {
  int why = fault_of({FileCall::kFlush, path, kNone});
  if (why == 0) {
    const UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!directory) fail_io("cannot flush the folder", path);
    if (::fsync(directory.get()) == 0) return;
    why = errno;
  }
  if (why != EINVAL && why != ENOTSUP) fail_io("cannot flush the folder", path, why);
  static std::once_flag warned;
  std::call_once(warned, [&] {
    log_warn("a power failure may undo or damage what was saved last: cannot flush the folder " +
             path + ": " + std::strerror(why));
  });
}

void make_directory(const std::string& path) {
  ask_fault({FileCall::kMakeFolder, path, kNone}, "cannot make the folder");
  if (::mkdir(path.c_str(), 0755) != 0) fail_io("cannot make the folder", path);
}

void rename_path(const std::string& from, const std::string& to) {
  ask_fault({FileCall::kRename, to, from}, "cannot rename to");
  if (::rename(from.c_str(), to.c_str()) != 0) fail_io("cannot rename to", to);
}

bool exchange_paths(const std::string& path, const std::string& other) {
  int why = fault_of({FileCall::kExchange, path, other});
  if (why == 0) {
    if (::renameat2(AT_FDCWD, other.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0)
      return true;
    why = errno;
  }
  if (why != EINVAL && why != ENOSYS) fail_io("cannot replace", path, why);
  return false;
}

void remove_tree(const std::string& path) noexcept try {
  std::error_code ignored;
  if (std::filesystem::symlink_status(path, ignored).type() ==
      std::filesystem::file_type::directory) {
    for (const auto& entry : std::filesystem::directory_iterator(path, ignored))
      remove_tree(entry.path().string());
  }
  if (fault_of({FileCall::kRemove, path, kNone}) == 0) std::filesystem::remove(path, ignored);
} catch (const std::exception&) {  // no memory for a path
}

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

void UniqueFd::reset(int fd) {
  const int old = std::exchange(fd_, fd);
  if (old < 0 || old == fd) return;
  const int saved = errno;
  ::close(old);  // no retry on EINTR: Linux has closed it
  errno = saved;
}

void fail_io(const std::string& what, const std::string& path, int error_number) {
  throw Error(internal::code_of_errno(error_number),
              what + " " + path + ": " + std::strerror(error_number));
}

void write_all(int fd, std::string_view bytes, const std::string& path) {
  ask_fault({FileCall::kWrite, path, kNone, bytes}, "cannot write");
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(fd, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) fail_io("cannot write", path);
    bytes.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

std::string read_file(const std::string& path, std::size_t max_bytes) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) fail_io("cannot open", path);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_io("cannot read", path);
  std::string bytes;
  // The size is a hint only: it is 0 for pipes and /proc, and a file may grow meanwhile.
  bytes.reserve(std::min(max_bytes, static_cast<std::size_t>(status.st_size)) + 1);
  char chunk[65536];
  while (true) {
    const ssize_t got = ::read(file.get(), chunk, sizeof chunk);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_io("cannot read", path);
    if (got == 0) return bytes;
    if (bytes.size() + static_cast<std::size_t>(got) > max_bytes) {
      throw Error(Errc::kCorrupt, path + " is larger than the " + std::to_string(max_bytes) +
                                      " bytes that are allowed here");
    }
    bytes.append(chunk, static_cast<std::size_t>(got));
  }
}

void write_file_atomic(const std::string& path, std::string_view bytes) {
  // A rename would replace /dev/null for all programs.
  struct stat there {};
  if (::stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode) && !S_ISDIR(there.st_mode))
    throw Error(Errc::kInvalidArgument, path + " is a device or a pipe, which no file can replace");
  std::string temporary = path + ".tmp.XXXXXX";
  UniqueFd file(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!file) fail_io("cannot create a file beside", path);
  try {
    write_all(file.get(), bytes, temporary);
    if (::fchmod(file.get(), 0644) != 0) fail_io("cannot set the mode of", temporary);
    flush_file(file.get(), temporary);
    if (::close(file.release()) != 0) fail_io("cannot close", temporary);
    rename_path(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  flush_directory(parent_of(path));
}

void make_directories(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    if (!S_ISDIR(status.st_mode)) fail_io("cannot make the folder", path, ENOTDIR);
    return;
  }
  if (errno != ENOENT) fail_io("cannot make the folder", path);
  const std::string plain = path.substr(0, path.find_last_not_of('/') + 1),
                    above = parent_of(plain);
  make_directories(above);
  ask_fault({FileCall::kMakeFolder, path, kNone}, "cannot make the folder");
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) fail_io("cannot make the folder", path);
  flush_directory(above);
}

TempDir::TempDir(const std::string& parent) {
  const char* base = variable_or_null("TMPDIR");
  const std::string usual = base != nullptr ? base : "/tmp";
  path_ = (parent.empty() ? usual : parent) + "/weft.XXXXXX";
  if (::mkdtemp(path_.data()) == nullptr) fail_io("cannot make a temporary folder", path_);
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace weft

// The lock's file is removed at the end of the save, while it is locked. A process that had opened
// it before then locks a file without a name, and another process a new file with the same name. So
// the lock counts only if its file still has its name.
#include "weft/checkpoint/internal/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>

#include "weft/base/error.h"
#include "weft/base/log.h"

namespace weft::checkpoint::internal {
namespace {

UniqueFd open_lock(const std::string& dir, const std::string& path) {
  constexpr int kFlags = O_CLOEXEC | O_NOFOLLOW;
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | kFlags, 0666));
  const int why = errno;
  // A killed process of another user may have left it.
  if (!file && why == EACCES) file = UniqueFd(::open(path.c_str(), O_RDONLY | kFlags));
  if (!file && why == ENOENT) fail_io("cannot make the folder", dir, why);  // a link to nowhere
  if (!file) fail_io("cannot make the lock", path, why);
  return file;
}

// As lock_file(), and true where the file system has no locks.
bool lock_if_possible(int fd, const std::string& path) {
  try {
    return lock_file(fd, path);
  } catch (const Error& error) {
    static std::once_flag warned;
    std::call_once(warned, [&] {
      log_warn(
          "a second job that saves into the same folder would be noticed late or not at all: " +
          error.message());
    });
    return true;
  }
}

}  // namespace

bool has_name(int fd, const std::string& path) {
  struct stat opened {
  }, named{};
  return ::fstat(fd, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

FolderLock::FolderLock(const std::string& dir) : path_(dir + "/" + kLockName) {
  constexpr int kTries = 100;  // each is in vain only if another save has ended meanwhile
  for (int i = 0; i < kTries; ++i) {
    file_ = open_lock(dir, path_);
    if (!lock_if_possible(file_.get(), path_)) break;
    if (has_name(file_.get(), path_)) return;
  }
  throw Error(Errc::kUnavailable, "another process is saving a checkpoint into " + dir +
                                      "; end that job, or give each job a folder of its own");
}

FolderLock::~FolderLock() {
  ::unlink(path_.c_str());
  // A child that was forked meanwhile has the descriptor too.
  ::flock(file_.get(), LOCK_UN);
}

OwnFolder::OwnFolder(const std::string& path) : path_(path) {
  make_directory(path);
  folder_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder_) fail_io("cannot open", path);
}

bool OwnFolder::is_in_place() const { return has_name(folder_.get(), path_); }

void OwnFolder::require_in_place() const {
  if (is_in_place()) return;
  throw Error(Errc::kUnavailable, path_ +
                                      " was removed or replaced during the save: another job "
                                      "saves into the same folder; give each job its own");
}

}  // namespace weft::checkpoint::internal

// Two jobs that save into one folder would remove and replace each other's files. Two guards
// prevent that: a lock of the folder, and a check that a folder is still the one that this process
// has made. Neither depends on the other.
#pragma once

#include <string>

#include "weft/base/file.h"

namespace weft::checkpoint::internal {

// Whether the open file or folder is the one of this name.
bool has_name(int fd, const std::string& path);

// The file that a save locks. It is in the folder of the checkpoints, and only during a save.
constexpr const char* kLockName = ".saving";

// The lock of a folder of checkpoints. The death of the process ends it too. Where the file system
// has no locks, it warns once and holds nothing.
class FolderLock {
 public:
  // Throws Error(kUnavailable) if a save of another job, or of this process, holds the lock.
  explicit FolderLock(const std::string& dir);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  const std::string path_;
  UniqueFd file_;
};

// A folder that this process has made.
class OwnFolder {
 public:
  // Makes the folder. One that exists is an error.
  explicit OwnFolder(const std::string& path);

  // False if the folder was removed or renamed. Another may then have its name.
  bool is_in_place() const;
  // Throws Error(kUnavailable) if it is not in place.
  void require_in_place() const;

 private:
  const std::string path_;
  // Open, so that the system gives its inode to no other folder.
  UniqueFd folder_;
};

}  // namespace weft::checkpoint::internal

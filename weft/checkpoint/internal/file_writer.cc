#include "weft/checkpoint/internal/file_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "weft/base/crc32c.h"

namespace weft::checkpoint::internal {

FileWriter::FileWriter(std::string path)
    : path_(std::move(path)), fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) {
  if (!fd_) fail_io("cannot create", path_);
}

void FileWriter::write(std::string_view bytes) {
  write_all(fd_.get(), bytes, path_);
  crc_ = crc32c(bytes.data(), bytes.size(), crc_);
  bytes_ += static_cast<std::int64_t>(bytes.size());
}

void FileWriter::finish() {
  if (::fsync(fd_.get()) != 0) fail_io("cannot flush", path_);
  if (::close(fd_.release()) != 0) fail_io("cannot close", path_);
}

void flush_directory(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) fail_io("cannot flush the folder", path);
}

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace weft::checkpoint::internal

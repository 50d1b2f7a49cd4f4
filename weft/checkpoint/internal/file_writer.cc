#include "weft/checkpoint/internal/file_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "weft/base/crc32c.h"

namespace weft::checkpoint::internal {
namespace {

constexpr std::int64_t kFlushBytes = std::int64_t{16} << 20;

}  // namespace

FileWriter::FileWriter(std::string path) : path_(std::move(path)), fd_(create_file(path_)) {}

void FileWriter::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::int64_t left = kChunkBytes - sums_.bytes % kChunkBytes;
    const std::string_view part = bytes.substr(0, static_cast<std::size_t>(left));
    crc_ = crc32c(part.data(), part.size(), crc_);
    write_all(fd_.get(), part, path_);
    bytes.remove_prefix(part.size());
    sums_.bytes += static_cast<std::int64_t>(part.size());
    if (sums_.bytes % kChunkBytes == 0) sums_.chunks.push_back(std::exchange(crc_, 0));
  }
  if (sums_.bytes - started_at_ < kFlushBytes) return;
  // Only a hint: if the file system does not support the call, finish() flushes everything.
  ::sync_file_range(fd_.get(), started_at_, sums_.bytes - started_at_, SYNC_FILE_RANGE_WRITE);
  started_at_ = sums_.bytes;
}

FileSums FileWriter::finish() {
  if (sums_.bytes % kChunkBytes != 0) sums_.chunks.push_back(crc_);
  flush_file(fd_.get(), path_);
  if (::close(fd_.release()) != 0) fail_io("cannot close", path_);
  return std::move(sums_);
}

FileSums write_text(const std::string& path, std::string_view text) {
  FileWriter out(path);
  out.write(text);
  return out.finish();
}

void replace_file(const std::string& path, const std::function<void(FileWriter&)>& body) {
  const std::string aside = path + ".tmp." + std::to_string(::getpid());
  ::unlink(aside.c_str());  // left by a dead process that had the same pid
  try {
    FileWriter out(aside);
    body(out);
    out.finish();
    rename_path(aside, path);
  } catch (...) {
    ::unlink(aside.c_str());
    throw;
  }
  flush_directory(parent_of(path));
}

}  // namespace weft::checkpoint::internal

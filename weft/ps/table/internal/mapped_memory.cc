#include "weft/ps/table/internal/mapped_memory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "weft/base/error.h"
#include "weft/base/space/reserve.h"

namespace weft::ps::internal {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

[[noreturn]] void fail_memory(int error_number) {
  throw Error(Errc::kUnavailable,
              "cannot map " + std::to_string(MappedMemory::kChunk >> 20) +
                  " MiB for a table: " + std::strerror(error_number) +
                  "; free memory, evict rows or give the table a folder for its rows");
}

UniqueFd nameless_file(const std::string& folder) {
  std::string path = folder + "/weft-table-XXXXXX";
  UniqueFd file(::mkostemp(path.data(), O_CLOEXEC));
  if (!file) fail_io("cannot make a file for a table in", folder);
  ::unlink(path.c_str());
  return file;
}

}  // namespace

MappedMemory::MappedMemory(const std::string& folder) : folder_(folder) {
  if (!folder_.empty()) file_ = nameless_file(folder_);
}

MappedMemory::~MappedMemory() {
  for (std::byte* chunk : chunks_) ::munmap(chunk, kChunk);
}

std::byte* MappedMemory::add() {
  chunks_.reserve(chunks_.size() + 1);
  chunks_.push_back(file_ ? map_file() : map_anonymous());
  return chunks_.back();
}

std::byte* MappedMemory::map_anonymous() {
  void* const mapped = ::mmap(nullptr, kChunk + kHugePage, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) fail_memory(errno);
  auto* const begin = static_cast<std::byte*>(mapped);
  const std::size_t before =
      (kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage) % kHugePage;
  if (before > 0) ::munmap(begin, before);
  ::munmap(begin + before + kChunk, kHugePage - before);
  ::madvise(begin + before, kChunk, MADV_HUGEPAGE);  // slower without, but right
  return begin + before;
}

// The file gets its blocks here. A write to a hole of a full disk would end the process.
std::byte* MappedMemory::map_file() {
  const auto offset = static_cast<off_t>(chunks_.size() * kChunk);
  if (const int error = reserve_space(file_.get(), offset, kChunk); error != 0) {
    fail_io("cannot add " + std::to_string(kChunk >> 20) + " MiB to the file of a table in",
            folder_, error);
  }
  void* const mapped =
      ::mmap(nullptr, kChunk, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), offset);
  if (mapped == MAP_FAILED) fail_memory(errno);
  ::madvise(mapped, kChunk, MADV_RANDOM);  // rows are read one by one
  return static_cast<std::byte*>(mapped);
}

}  // namespace weft::ps::internal

#include "weft/engine/internal/mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "weft/base/error.h"
#include "weft/base/space/reserve.h"

namespace weft::engine::internal {
namespace {

[[noreturn]] void fail(const std::filesystem::path& folder, const char* what, int error) {
  throw Error(Errc::kUnavailable,
              "offload to " + folder.string() + ": cannot " + what + ": " + std::strerror(error) +
                  "; choose a folder with free space",
              {"offload"});
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& folder, std::size_t bytes) : bytes_(bytes) {
  std::string name = (folder / "weft-optimizer-XXXXXX").string();
  const int file = mkstemp(name.data());
  if (file < 0) fail(folder, "make a file", errno);
  unlink(name.c_str());
  if (const int error = reserve_space(file, 0, static_cast<std::int64_t>(bytes)); error != 0) {
    close(file);
    fail(folder, "reserve space in it", error);
  }
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int error = errno;
  close(file);
  if (data == MAP_FAILED) fail(folder, "map the file", error);
  data_ = static_cast<std::byte*>(data);
}

MappedFile::~MappedFile() { munmap(data_, bytes_); }

}  // namespace weft::engine::internal

// Journal of a store process: records in an anonymous file that the launcher holds, so that they
// survive the process. A record is complete or absent.
//
//   header: two slots {generation, start, checksum}; the valid one with the higher number counts
//   start: {length, CRC32C, record} …
//
// restart() writes the new records behind the old ones, then the other slot, and then gives the old
// memory back. A process that is killed at any instant leaves the old records or the new ones.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/file.h"

namespace weft::store::internal {

class Journal {
 public:
  // `fd`: a file opened for reading and writing, empty at first.
  explicit Journal(UniqueFd fd);

  // Gives each record to `take`, oldest first. Drops an incomplete last record. Called once, first.
  // Throws what `take` throws, and Error(kUnavailable) if the file cannot be read.
  void load(const std::function<void(std::string_view record)>& take);
  // Throw Error(kUnavailable) if the file cannot be written; the journal is then not usable.
  void append(const std::vector<std::string>& records);
  // Replaces all records.
  void restart(const std::vector<std::string>& records);

 private:
  void write(std::string_view bytes, std::uint64_t at) const;
  std::string read(std::uint64_t at, std::size_t bytes) const;
  void read_header();

  UniqueFd fd_;
  std::uint64_t generation_ = 0;
  std::uint64_t start_ = 0;
  std::uint64_t end_ = 0;
};

}  // namespace weft::store::internal

#include "weft/observe/run/record_file.h"

#include <unistd.h>

#include "weft/base/error.h"
#include "weft/base/log.h"

namespace weft::observe {

void RecordFile::append(std::string_view records) {
  if (!file_) return;
  const off_t end = ::lseek(file_.get(), 0, SEEK_END);
  try {
    write_all(file_.get(), records, path_);
    loses_records_ = false;
  } catch (const Error& error) {
    if (end >= 0 && ::ftruncate(file_.get(), end) != 0)
      log_debug("cannot remove a part of a record from " + path_);
    if (!std::exchange(loses_records_, true))
      log_error(error.message() + "; its records are lost until it can be written again");
  }
}

}  // namespace weft::observe

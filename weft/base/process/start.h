// Sets up a process so that limits of its environment become errors, which name themselves.
#pragma once

#include <string>

namespace weft {

// Opens /dev/null for each of the descriptors 0, 1 and 2 that is closed. Otherwise the next file or
// socket would get the number, and messages would be written into it. Call it first in main().
void open_standard_descriptors() noexcept;

// Ignores SIGXFSZ, unless the process handles it. A write beyond the limit of file sizes (ulimit
// -f) then fails like one to a full disk (EFBIG), and does not kill the process. Programs that this
// process starts ignore it too.
void ignore_file_size_signal() noexcept;

// The folder for temporary files: TMPDIR, or /tmp. Throws Error(kBadConfig) if it is no folder in
// which this process may make files.
std::string temporary_folder();

// Ends the process. Flushes stdout and stderr and runs the handlers of std::at_quick_exit, but not
// the destructors of static objects: those of libtorch take 70 ms. With a sanitizer, it is
// std::exit(), so that leaks are found.
[[noreturn]] void end_process(int code) noexcept;

}  // namespace weft

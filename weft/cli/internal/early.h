// Reports a lack of memory while libtorch loads in one line. Each program of the command that links
// libtorch includes it in the source of main().
#pragma once

#include "weft/base/json/error_file.h"

namespace {

// Runs before the initializers of libtorch, which need memory.
__attribute__((section(".preinit_array"), used)) void (*const first)() = [] {
  weft::report_exhaustion_on_terminate();
};

}  // namespace

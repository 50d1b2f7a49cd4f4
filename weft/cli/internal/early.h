// Include it in the source of main(), of each program that links libtorch and is part of the
// command: a lack of memory while libtorch loads is then reported in one line.
#pragma once

#include "weft/base/json/error_file.h"

namespace {

// Runs before the initializers of libtorch, which need memory.
__attribute__((section(".preinit_array"), used)) void (*const first)() = [] {
  weft::report_exhaustion_on_terminate();
};

}  // namespace

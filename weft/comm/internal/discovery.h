// The error of rank discovery, for a wrong variable.
#pragma once

#include <string>

#include "weft/base/error.h"

namespace weft::comm::internal {

[[noreturn]] inline void bad_discovery(const std::string& message) {
  throw Error(Errc::kBadConfig, message, {"rank discovery", -1, -1});
}

}  // namespace weft::comm::internal
